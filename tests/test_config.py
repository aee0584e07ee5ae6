"""The config: layers, overrides, limits, and error messages that name the file, the line and the key."""

import math
import time

import pytest

from glasshouse.config.loading import (
    SYNONYMS,
    describe_keys,
    dump_yaml,
    load_config,
    parse_yaml,
    read_yaml_file,
    to_yaml,
)
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.types import Style

ALIAS_BOMB = "task:\n  options:\n    a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"    a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.fixture
def write_config(tmp_path):
    def write(text):
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return file

    return write


def error_message(file=None, overrides=()):
    with pytest.raises(ConfigError) as error:
        load_config([file] if file else [], overrides)
    return str(error.value)


def test_the_command_line_overrides_later_files_earlier_files_and_defaults(write_config, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("learn: {learning_rate: 0.25}\n")
    first = write_config("steps: 7\nlearn: {learning_rate: 0.5, epochs_per_batch: 3}\n")
    config = load_config([first, later])
    assert (config.steps, config.learn.learning_rate) == (7, 0.25)
    assert config.learn.kl_coef == Config().learn.kl_coef
    config = load_config([first, later], ["learn.learning_rate=1e-4", "seed=2", "seed=3"])
    assert (config.learn.epochs_per_batch, config.learn.learning_rate, config.seed) == (3, 1e-4, 3)
    invalid = write_config("learn: {epochs_per_batch: none}\n")
    with pytest.raises(ConfigError, match="epochs_per_batch") as error:
        load_config([invalid, later])
    assert str(error.value).startswith(f"{invalid}: ")


def test_overrides_set_options_terms_and_texts():
    config = load_config([], ["task.options.count=[1, 2]", "reward.terms={exact: 1, format: 0.2}"])
    assert config.task.options == {"count": [1, 2]}
    assert config.reward.terms == {"exact": 1.0, "format": 0.2}
    assert load_config([], ["task.style=direct"]).task.style is Style.DIRECT
    assert load_config([], ['generate.stop=["\\n\\n", Q]']).generate.stop == ("\n\n", "Q")
    assert load_config([], ["imports=my_rewards"]).imports == ("my_rewards",)
    assert load_config([], ["reward.shuffle=yes"]).reward.shuffle is True
    assert load_config([], ["learn.skip_zero_advantage=off"]).learn.skip_zero_advantage is False
    assert load_config([], ["steps=1e3", "evaluate.problems=2.5e2"]).steps == 1000
    for text in ("a: b", "1e3", "x #y", "[x]", "null", "~x", "007", "a=b", "", "*star"):
        assert load_config([], [f"out={text}"]).out == text
        assert load_config([], [f'out="{text}"']).out == text


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("stepps: 3", "stepps", '"steps"'),
        ("lern:\n  kl_coef: 1", "lern.kl_coef", '"learn.kl_coef"'),
        ("lern: 1", "lern", '"learn"'),
        ("learn:\n  lr: 1", "learn.lr", '"learn.learning_rate"'),
        ("optim:\n  lr: 1", "optim.lr", '"learn.learning_rate"'),
        ("batch_size: 1", "batch_size", '"data.groups_per_step"'),
        ("max_new_token: 1", "max_new_token", '"generate.max_tokens"'),
        ("checkpoint:\n  every: 1", "checkpoint.every", '"checkpoints.every"'),
        ("learn:\n  epochs_per_bach: 1", "learn.epochs_per_bach", '"learn.epochs_per_batch"'),
        (
            "diagnostic:\n  zero_variance_steps: 3",
            "diagnostic.zero_variance_steps",
            '"diagnostics.zero_variance_steps"',
        ),
        ("learning_rate: 0.1", "learning_rate", '"learn.learning_rate"'),
        ("learn:\n  max_tokens: 3", "learn.max_tokens", '"generate.max_tokens"'),
        ("data:\n  zzzzzz: 1", "data.zzzzzz", "data.size, data.source"),
    ],
)
def test_unknown_key_names_the_file_and_the_nearest_keys(write_config, text, key, suggestion):
    file = write_config(text)
    message = error_message(file)
    assert message.startswith(f"{file}: ")
    assert f'"{key}"' in message
    assert suggestion in message


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("steps: many", "steps", "'many'"),
        ("steps: 2.5", "steps", "2.5"),
        ("steps: -1", "steps", "-1"),
        ("steps: yes", "steps", "'yes'"),
        ("steps: true", "steps", "True"),
        ("steps: 1:30", "steps", "'1:30'"),
        ("seed: null", "seed", "None"),
        ("learn: {learning_rate: fast}", "learn.learning_rate", "'fast'"),
        ("learn: {learning_rate: 0}", "learn.learning_rate", "0"),
        ("learn: {learning_rate: .nan}", "learn.learning_rate", "nan"),
        ("learn: {learning_rate: .inf}", "learn.learning_rate", "inf"),
        ("learn: 3", "learn", "3"),
        ("task: {style: loud}", "task.style", "'loud'"),
        ("data: {source: stale}", "data.source", "'stale'"),
        ("out: 3", "out", "3"),
        ("generate: {stop: [1]}", "generate.stop.0", "1"),
        ("reward: {terms: {exact: much}}", "reward.terms.exact", "'much'"),
    ],
)
def test_invalid_value_names_the_file_the_key_and_the_value(write_config, text, key, value):
    file = write_config(text)
    message = error_message(file)
    assert message.startswith(f'{file}: "{key}" is {value}: ')
    assert message.endswith(".")
    assert "\n" not in message
    assert "Value error" not in message


def test_invalid_override_names_the_command_line(write_config):
    message = error_message(write_config("steps: 3"), ["steps=x"])
    assert message.startswith("the command line: \"steps\" is 'x'")
    assert '"learn.learning_rate"' in error_message(None, ["learn.learning_rat=1"])
    for override in ("steps", "=3", ""):
        assert f'"{override}"' in error_message(None, [override])
    message = error_message(write_config("steps: x\nlearn: {lrr: 1}"), ["seed=-3"])
    assert len(message.split("\n")) == 3  # all errors at once


@pytest.mark.parametrize("section", ["", "learn:\n"])
def test_thousands_of_unknown_keys_are_refused_in_a_second(write_config, section):
    file = write_config(section + "".join(f" lerning_{i}: 1\n" for i in range(5000)))
    start = time.process_time()
    lines = error_message(file).split("\n")
    assert time.process_time() - start < 10
    assert len(lines) == 21
    assert "4,980" in lines[-1]


def test_missing_unreadable_or_non_mapping_file_is_a_config_error(write_config, tmp_path):
    assert "none.yaml" in error_message(tmp_path / "none.yaml")
    assert str(tmp_path) in error_message(tmp_path)
    assert "mapping" in error_message(write_config("- 1\n- 2\n"))
    assert "100,000" in error_message(write_config("steps: 1\n" + "# problems\n" * 100_000))


def test_config_round_trips_through_yaml_without_aliases(write_config):
    shared = [1, 2]
    options = {"task": {"style": "direct", "options": {"a": shared, "b": shared, "name": "ünï"}}}
    overrides = {"learn": {"learning_rate": 3e-7}, "generate": {"stop": ["a: b", "#", "yes"]}}
    config = Config.model_validate(options | overrides)
    assert load_config([write_config(to_yaml(config))]) == config
    assert "&" not in to_yaml(config)
    assert load_config([write_config(to_yaml(Config()))]) == Config()
    assert load_config([write_config("# nothing yet\n")]) == Config()
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 3


def test_every_key_is_described_with_type_and_default():
    rows = {key: (kind, default) for key, kind, default, text in describe_keys() if len(text) > 3}
    assert len(rows) == len(describe_keys())
    assert all(kind for kind, _ in rows.values())
    assert rows["learn.learning_rate"] == ("float", "0.0003")
    assert rows["task.style"] == ("cot | direct", "cot")
    assert rows["learn.clip_low"] == ("float or empty", "null")


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        pytest.param("steps: 3\nlearn: [\n", 3, "YAML|expected", id="syntax"),
        pytest.param("a: b: c\n", 1, "mapping", id="two colons"),
        pytest.param("steps: 1\nseed: 2\nsteps: 3", 3, '"steps"', id="twice"),
        pytest.param("learn:\n  kl_coef: 0\n  kl_coef: 1", 3, '"kl_coef"', id="twice in a section"),
        pytest.param("task: {options: {a: 1, a: 2}}", 1, '"a"', id="twice in options"),
        pytest.param(ALIAS_BOMB, 4, "a0", id="alias bomb"),
        pytest.param("task:\n  options: &self\n    inner: *self", 3, "self", id="self alias"),
        pytest.param("task:\n  options: {a: " + "[" * 50_000, 2, "32", id="nesting"),
        pytest.param(f"steps: 1\nseed: {'9' * 5000}", 2, "100", id="digits"),
        pytest.param(f"steps: 1\nseed: 0x{'f' * 5000}", 2, "100", id="hex digits"),
        pytest.param('steps: 1\nout: "\\ud800"', 2, "(?i)unicode", id="surrogate"),
        pytest.param("steps: 1\nout: !!binary YQ==", 2, "binary", id="binary"),
        pytest.param("steps: 1\nout: !!python/name:os.system", 2, "python", id="object"),
        pytest.param("steps: 1\n? [a, b]\n: 2", 2, "list", id="list as key"),
        pytest.param("steps: 1\n---\nsteps: 2", 3, "document", id="two documents"),
    ],
)
def test_hostile_yaml_is_refused_with_its_line(write_config, text, line, named):
    file = write_config(text)
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
        for written in (value, text):  # as a text, each must be quoted
            assert parse_yaml(dump_yaml({"a": written})) == {"a": written}, text
    assert math.isnan(parse_yaml(".nan"))


@pytest.mark.parametrize(
    "text",
    [
        "learn.learning_rate: 0.1\nlearn: {kl_coef: 0, learning_rate: 0.2}",
        "learn: {kl_coef: 0, learning_rate: 0.2}\nlearn.learning_rate: 0.1",
        "learn.learning_rate: 0.1\nlearn: 3",
    ],
)
def test_one_value_in_two_spellings_is_refused(write_config, text):
    for indent in ("", "arms:\n  - "):
        file = write_config(indent + text.replace("\n", "\n" + " " * 4 * bool(indent)))
        with pytest.raises(ConfigError, match=r'"learn\.learning_rate"') as error:
            read_yaml_file(file)
        assert str(error.value).startswith(f"{file} line {2 if indent else 1}: ")


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


def test_every_synonym_names_a_key_and_is_none_itself():
    keys = {key for key, *_ in describe_keys()}
    assert keys >= SYNONYMS.keys()
    words = [word for words in SYNONYMS.values() for word in words.split()]
    assert len(words) == len(set(words))
    assert not {key.rpartition(".")[2] for key in keys} & {*words}
