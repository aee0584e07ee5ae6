"""The config: layers, overrides, and error messages that name the key."""

import re
import time

import pytest

from glasshouse.config.loading import describe_keys, load_config, to_yaml
from glasshouse.config.schema import Config
from glasshouse.errors import ConfigError
from glasshouse.types import Style


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


def test_command_line_overrides_file_overrides_defaults(write_config):
    file = write_config(
        "steps: 7\nlearn: {learning_rate: 0.5, epochs_per_batch: 3}\ntask: {name: arithmetic}\n"
    )
    config = load_config([file], ["learn.learning_rate=1e-4", "seed=2", "seed=3"])
    assert (config.steps, config.learn.epochs_per_batch, config.task.name) == (7, 3, "arithmetic")
    assert (config.learn.learning_rate, config.seed) == (1e-4, 3)
    assert config.learn.kl_coef == Config().learn.kl_coef
    assert load_config([file]).learn.learning_rate == 0.5


def test_a_later_file_wins_and_an_error_names_the_file_with_the_invalid_value(
    write_config, tmp_path
):
    later = tmp_path / "later.yaml"
    later.write_text("learn: {learning_rate: 0.25}\n")
    first = write_config("learn: {epochs_per_batch: none}\n")
    with pytest.raises(ConfigError, match="epochs_per_batch") as error:
        load_config([first, later])
    assert str(error.value).startswith(f"{first}: ")
    config = load_config([write_config("steps: 7\nlearn: {learning_rate: 0.5}\n"), later])
    assert (config.steps, config.learn.learning_rate) == (7, 0.25)


def test_overrides_set_options_and_terms():
    config = load_config([], ["task.options.count=[1, 2]", "reward.terms={exact: 1, format: 0.2}"])
    assert config.task.options == {"count": [1, 2]}
    assert config.reward.terms == {"exact": 1.0, "format": 0.2}
    assert load_config([], ["task.style=direct"]).task.style is Style.DIRECT
    assert load_config([], ['generate.stop=["\\n\\n", Q]']).generate.stop == ("\n\n", "Q")


def test_value_may_contain_an_equals_sign_or_be_empty():
    assert load_config([], ["out=a=b"]).out == "a=b"
    assert load_config([], ["out="]).out == ""


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("stepps: 3", "stepps", "steps"),
        ("lern:\n  learning_rate: 1", "lern", "learn"),
        ("learn:\n  epochs_per_bach: 1", "learn.epochs_per_bach", "learn.epochs_per_batch"),
        ("task:\n  nmae: x", "task.nmae", "task.name"),
        ("diagnostic:\n  zero_variance_steps: 3", "diagnostic", "diagnostics"),
        ("learning_rate: 0.1", "learning_rate", "learn.learning_rate"),
        ("learn:\n  max_tokens: 3", "learn.max_tokens", "generate.max_tokens"),
    ],
)
def test_unknown_key_names_the_file_and_the_nearest_key(write_config, text, key, suggestion):
    file = write_config(text)
    message = error_message(file)
    assert message.startswith(f"{file}: ")
    assert f'"{key}"' in message
    assert f'"{suggestion}"' in message


def test_unknown_key_without_a_near_match_lists_the_section(write_config):
    message = error_message(write_config("data:\n  zzzzzz: 1"))
    assert '"data.zzzzzz"' in message
    assert "data.size, data.source" in message


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


def test_invalid_override_names_the_command_line(write_config):
    message = error_message(write_config("steps: 3"), ["steps=x"])
    assert message.startswith("the command line: \"steps\" is 'x'")
    unknown = error_message(None, ["learn.learning_rat=1"])
    assert unknown.startswith("the command line: ")
    assert '"learn.learning_rate"' in unknown


def test_all_errors_are_reported_at_once(write_config):
    message = error_message(write_config("steps: x\nlearn: {lrr: 1}"), ["seed=-3"])
    assert len(message.split("\n")) == 3


@pytest.mark.parametrize("section", ["", "learn:\n"])
def test_thousands_of_unknown_keys_are_refused_in_a_second(write_config, section):
    file = write_config(section + "".join(f" lerning_{i}: 1\n" for i in range(5000)))
    start = time.process_time()
    lines = error_message(file).split("\n")
    assert time.process_time() - start < 10
    assert len(lines) == 21
    assert "4,980" in lines[-1]


@pytest.mark.parametrize(("text", "line"), [("steps: 3\nlearn: [\n", 3), ("a: b: c\n", 1)])
def test_syntax_error_names_file_and_line(write_config, text, line):
    file = write_config(text)
    assert re.match(rf"{re.escape(str(file))} line {line} ", error_message(file))


def test_missing_unreadable_or_non_mapping_file_is_a_config_error(write_config, tmp_path):
    assert "none.yaml" in error_message(tmp_path / "none.yaml")
    assert str(tmp_path) in error_message(tmp_path)
    assert "mapping" in error_message(write_config("- 1\n- 2\n"))


def test_empty_file_gives_the_defaults(write_config):
    assert load_config([write_config("# nothing yet\n")]) == Config()


@pytest.mark.parametrize("override", ["steps", "=3", ""])
def test_invalid_override_is_a_config_error(override):
    assert f'"{override}"' in error_message(None, [override])


def test_config_round_trips_through_yaml(write_config):
    options = "task.options={count: [1, 2], name: ünï}"
    stop = 'generate.stop=["a: b", "#", "yes"]'
    config = load_config([], ["learn.learning_rate=3e-7", "task.style=direct", options, stop])
    assert load_config([write_config(to_yaml(config))]) == config
    assert load_config([write_config(to_yaml(Config()))]) == Config()


def test_every_key_is_described_with_type_and_default():
    for key, kind, _, text in describe_keys():
        assert kind, key
        assert len(text) > 3, key
    rows = {key: (kind, default) for key, kind, default, _ in describe_keys()}
    assert rows["steps"] == ("int", "60")
    assert rows["learn.learning_rate"] == ("float", "0.0003")
    assert rows["task.style"] == ("cot | direct", "cot")
    assert rows["learn.clip_low"] == ("float or empty", "null")
    assert rows["data.source"] == ("fresh | fixed", "fresh")


def test_config_is_immutable():
    with pytest.raises(ValueError, match="frozen"):
        Config().steps = 3
