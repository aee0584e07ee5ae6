"""Config files that exceed a limit are refused at once, with the key or the line (docs/runs.md)."""

import math

import pytest

from glasshouse.config.loading import load_config, to_yaml
from glasshouse.config.schema import Config
from glasshouse.config.yaml_files import dump_yaml, parse_yaml, read_yaml_file
from glasshouse.errors import ConfigError, TaskError
from glasshouse.tasks.base import make_task

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
        ('steps: 1\nout: "\\ud800"', 2, "(?i)unicode"),
        ("steps: 1\nout: !!binary YQ==", 2, "binary"),
        ("steps: 1\nout: !!python/name:os.system", 2, "python"),
        ("steps: 1\n? [a, b]\n: 2", 2, "list"),
        ("steps: 1\n---\nsteps: 2", 3, "document"),
    ],
    ids=["twice", "twice in a section", "twice in options", "alias bomb", "self alias", "nesting", "digits",
         "hex digits", "surrogate", "binary", "object", "list as key", "two documents"],
)  # fmt: skip
def test_hostile_yaml_is_refused_with_its_line(tmp_path, text, line, named):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named) as error:
        load_config([file])
    assert str(error.value).startswith(f"{file} line {line}")
    assert len(str(error.value)) < 500


def test_numbers_and_words_are_read_as_in_yaml_1_2():
    values = {
        "010": 10, "-7": -7, "0o17": 15, "0x1F": 31, "1e-3": 0.001, "2.5E+3": 2500.0, ".5": 0.5, "3.": 3.0,
        "-.inf": -math.inf, "1:30": "1:30", "1_000": "1_000", "0b11": "0b11", "2026-01-31": "2026-01-31",
        "true": True, "False": False, "yes": "yes", "no": "no", "on": "on", "off": "off",
        "null": None, "~": None, "": None, "'1'": "1", '"true"': "true", "<<": "<<",
    }  # fmt: skip
    for text, value in values.items():
        read = parse_yaml(f"a: {text}")["a"]
        assert (read, type(read)) == (value, type(value)), text
        assert parse_yaml(dump_yaml({"a": value})) == {"a": value}, text
    for text in values:  # as a text, each must be quoted
        assert parse_yaml(dump_yaml({"a": text})) == {"a": text}, text
    assert math.isnan(parse_yaml(".nan"))


def test_yes_and_no_are_accepted_where_the_key_is_a_boolean():
    assert load_config([], ["reward.shuffle=yes"]).reward.shuffle is True
    assert load_config([], ["learn.skip_zero_advantage=off"]).learn.skip_zero_advantage is False


@pytest.mark.parametrize(
    "text",
    [
        "learn.learning_rate: 0.1\nlearn: {kl_coef: 0, learning_rate: 0.2}",
        "learn: {kl_coef: 0, learning_rate: 0.2}\nlearn.learning_rate: 0.1",
        "learn.learning_rate: 0.1\nlearn: 3",
    ],
)
def test_one_value_in_two_spellings_is_refused(tmp_path, text):
    file = tmp_path / "run.yaml"
    for indent in ("", "arms:\n  - "):
        file.write_text(indent + text.replace("\n", "\n" + " " * 4 * bool(indent)))
        with pytest.raises(ConfigError) as error:
            read_yaml_file(file)
        assert str(error.value).startswith(f"{file} line {2 if indent else 1}: ")
        assert '"learn.learning_rate"' in str(error.value)


def test_a_dotted_key_adds_to_its_section_whatever_their_order(tmp_path):
    file = tmp_path / "run.yaml"
    lines = ["task.options.count: [1, 2]", "task: {name: sum_digits, options: {other: 1}}"]
    for text in (lines, lines[::-1]):
        file.write_text("\n".join(text))
        config = load_config([file])
        assert config.task.options == {"count": [1, 2], "other": 1}
        assert config.task.name == "sum_digits"


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
        "monarch.generators", "monarch.learners",
    ],
)  # fmt: skip
def test_a_count_that_no_run_needs_is_refused_with_its_key(key):
    with pytest.raises(ConfigError, match=key):
        load_config([], [f"{key}={10**20}"])


def test_repeated_values_are_written_without_aliases():
    shared = [1, 2]
    config = Config.model_validate({"task": {"options": {"a": shared, "b": shared}}})
    assert parse_yaml(to_yaml(config))["task"]["options"] == {"a": [1, 2], "b": [1, 2]}
    assert "*" not in to_yaml(config)
    assert "&" not in to_yaml(config)


@pytest.mark.parametrize(
    ("task", "option"), [("sum_digits", "count"), ("arithmetic", "steps"), ("interleave", "length")]
)
def test_a_problem_with_millions_of_parts_is_refused_with_the_option(task, option):
    with pytest.raises(TaskError, match=option):
        make_task(task, {option: [1, 10**9]})
