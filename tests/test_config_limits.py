"""Config files that exceed a limit are refused at once, with the key or the line (docs/limits.md)."""

from glob import glob
from pathlib import Path

import pytest
import yaml

from glasshouse.config import Config, load_config, to_yaml, yaml_parser
from glasshouse.errors import ConfigError, TaskError
from glasshouse.tasks import make_task

ALIAS_BOMB = "task:\n  options:\n    a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("steps: 1\nseed: 2\nsteps: 3", 3, '"steps"'),
        ("learn:\n  kl_coef: 0\n  kl_coef: 1", 3, '"kl_coef"'),
        ("task: {options: {a: 1, a: 2}}", 1, '"a"'),
        (ALIAS_BOMB, 4, "a0"),
        ("task:\n  options: &self\n    inner: *self", 3, "self"),
        ("task:\n  options: {a: " + "[" * 50_000, 2, "32"),
        (f"steps: 1\nseed: {'9' * 5000}", 2, "100"),
        (f"steps: 1\nseed: 0x{'f' * 5000}", 2, "100"),
        ('steps: 1\nout: "\\ud800"', 2, "surrogate"),
    ],
    ids=["twice", "twice in a section", "twice in options", "alias bomb", "self alias", "nesting", "digits",
         "hex digits", "surrogate"],
)  # fmt: skip
def test_hostile_yaml_is_refused_with_its_line(tmp_path, text, line, named):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named) as error:
        load_config([file])
    assert str(error.value).startswith(f"{file} line {line}")
    assert len(str(error.value)) < 500


def test_the_fast_parser_gives_the_same_values_and_errors(monkeypatch):
    files = [Path(name).read_text() for name in glob("training/*/config.yaml")]
    broken = ["a: [1, 2", "a: b: c", "a: 1\n\tb: 2", "x: @y", "a: *b", "a: {b: 1", "a: 2026-13-45"]
    assert len(files) > 3
    fast = [parse_or_fail(text) for text in [*files, *broken, to_yaml(Config())]]
    monkeypatch.setattr(yaml_parser, "is_flat", lambda text: False)
    assert [parse_or_fail(text) for text in [*files, *broken, to_yaml(Config())]] == fast


def parse_or_fail(text):
    try:
        return yaml_parser.parse_yaml(text)
    except yaml.YAMLError as error:
        return type(error), str(error)


def test_a_large_config_file_is_refused_unread(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_bytes(b"steps: 1\n" + b"# problems\n" * 100_000)
    with pytest.raises(ConfigError, match="100,000"):
        load_config([file])


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("seed=" + "9" * 5000, "seed"),
        ("task.options.a=[&x [1], *x]", "task.options.a"),
        ("task.options={a: 1, a: 2}", "task.options"),
        ("task.options.a=" + "[" * 5000, "task.options.a"),
        (".".join("a" * 5000) + "=1", "a.a.a"),
        ("out=\udcff", "Unicode"),
    ],
)
def test_hostile_override_is_refused_with_its_key(override, named):
    with pytest.raises(ConfigError, match=named) as error:
        load_config([], [override])
    assert len(str(error.value)) < 500


def test_an_override_may_look_like_an_alias():
    assert load_config([], ["out=*star"]).out == "*star"


@pytest.mark.parametrize(
    "key",
    [
        "steps", "seed", "threads", "data.groups_per_step", "data.size", "generate.group_size",
        "generate.max_tokens", "generate.chunk_size", "generate.top_k", "learn.epochs_per_batch",
        "learn.max_resamples", "learn.gradient_blocks", "learn.lora_rank", "evaluate.problems", "evaluate.samples",
        "evaluate.seed", "evaluate.oversize", "monitor.problems", "monitor.samples", "monitor.threshold_problems",
        "monarch.generators", "monarch.learners", "hosts.count",
    ],
)  # fmt: skip
def test_a_count_that_no_run_needs_is_refused_with_its_key(key):
    with pytest.raises(ConfigError, match=key):
        load_config([], [f"{key}={10**20}"])


def test_repeated_values_are_written_without_aliases():
    shared = [1, 2]
    config = Config.model_validate({"task": {"options": {"a": shared, "b": shared}}})
    assert yaml.safe_load(to_yaml(config))["task"]["options"] == {"a": [1, 2], "b": [1, 2]}
    assert "*" not in to_yaml(config)
    assert "&" not in to_yaml(config)


@pytest.mark.parametrize(
    ("task", "option"), [("sum_digits", "count"), ("arithmetic", "steps"), ("interleave", "length")]
)
def test_a_problem_with_millions_of_parts_is_refused_with_the_option(task, option):
    with pytest.raises(TaskError, match=option):
        make_task(task, {option: [1, 10**9]})
