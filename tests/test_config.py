"""The whole run as one typed tree; every mistake is a sentence."""

import re

import pytest
import yaml

from glasshouse.config import Config, Section, describe, dump, load
from glasshouse.errors import ConfigError, GlasshouseError
from glasshouse.types import Style


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "run.yaml"
        file.write_text(text)
        return file

    return write


def complaint(file=None, overrides=()):
    with pytest.raises(ConfigError) as error:
        load([file] if file else [], overrides)
    return str(error.value)


def test_without_anything_the_defaults_hold():
    assert load() == Config()


def test_the_file_overrides_the_defaults_and_the_command_line_the_file(written):
    file = written("steps: 7\nlearn:\n  lr: 0.5\n  passes: 3\ntask: {name: arithmetic}\n")
    config = load([file], ["learn.learning_rate=1e-4", "seed=3"])
    assert (config.steps, config.learn.epochs_per_batch, config.task.name) == (7, 3, "arithmetic")
    assert (config.learn.learning_rate, config.seed) == (1e-4, 3)
    assert config.learn.kl_coef == Config().learn.kl_coef
    assert load([file]).learn.learning_rate == 0.5


def test_a_later_file_is_laid_over_an_earlier_one(written, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("learn: {learning_rate: 0.25}\n")
    config = load([written("steps: 7\nlearn: {lr: 0.5, passes: 3}\n"), later])
    assert (config.steps, config.learn.epochs_per_batch, config.learn.learning_rate) == (7, 3, 0.25)


def test_of_two_files_the_one_with_the_mistake_is_named(written, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("learn: {learning_rate: 0.25}\n")
    first = written("learn: {epochs_per_batch: none}\n")
    with pytest.raises(ConfigError, match="passes") as error:
        load([first, later])
    assert str(error.value).startswith(f"{first}: ")


def test_the_last_of_two_overrides_holds():
    assert load([], ["steps=1", "steps=2"]).steps == 2


def test_overrides_reach_into_options_and_terms():
    config = load([], ["task.options.count=[1, 2]", "reward.terms={exact: 1, format: 0.2}"])
    assert config.task.options == {"count": [1, 2]}
    assert config.reward.terms == {"exact": 1.0, "format": 0.2}
    assert load([], ["task.style=direct"]).task.style is Style.DIRECT
    assert load([], ['generate.stop=["\\n\\n", Q]']).generate.stop == ("\n\n", "Q")


def test_a_value_may_hold_an_equals_sign_or_be_empty():
    assert load([], ["out=a=b"]).out == "a=b"
    assert load([], ["out="]).out == ""


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "0.0003", "3E-4"])
def test_an_exponent_is_a_number_in_the_file_and_on_the_command_line(written, text):
    for config in (
        load([written(f"learn:\n  lr: {text}\n")]),
        load([], [f"learn.learning_rate={text}"]),
    ):
        assert config.learn.learning_rate == 0.0003
        assert type(config.learn.learning_rate) is float


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ("stepps: 3", "stepps", "steps"),
        ("lern:\n  lr: 1", "lern", "learn"),
        ("learn:\n  passess: 1", "learn.passess", "learn.epochs_per_batch"),
        ("task:\n  nmae: x", "task.nmae", "task.name"),
        ("watch:\n  stuck: 3", "watch.stuck", "diagnostics.zero_variance_steps"),
        ("lr: 0.1", "lr", "learn.learning_rate"),
        ("learn:\n  max_tokens: 3", "learn.max_tokens", "generate.max_tokens"),
    ],
)
def test_an_unknown_key_names_the_file_and_the_nearest_key(written, text, key, suggestion):
    file = written(text)
    said = complaint(file)
    assert said == f'{file}: there is no key "{key}". Did you mean "{suggestion}"?'


def test_an_unknown_key_like_no_other_lists_what_there_is(written):
    said = complaint(written("data:\n  zzzzzz: 1"))
    assert 'no key "data.zzzzzz"' in said
    assert "data.groups_per_step, data.size, data.source" in said


def test_an_unknown_override_names_the_command_line_even_beside_a_file(written):
    said = complaint(written("learn: {learning_rate: 0.1}"), ["learn.lrr=1"])
    assert (
        said == 'the command line: there is no key "learn.lrr". Did you mean "learn.learning_rate"?'
    )


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("steps: many", "steps", "'many'"),
        ("steps: 2.5", "steps", "2.5"),
        ("steps: -1", "steps", "-1"),
        ("steps: yes", "steps", "True"),
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
def test_a_wrong_value_names_the_file_the_key_and_the_value(written, text, key, value):
    file = written(text)
    said = complaint(file)
    assert said.startswith(f'{file}: "{key}" is {value}: ')
    assert said.endswith(".")
    assert "\n" not in said


def test_an_override_is_blamed_for_its_own_value(written):
    said = complaint(written("steps: 3"), ["steps=x"])
    assert said.startswith("the command line: \"steps\" is 'x'")


def test_all_mistakes_are_told_at_once(written):
    said = complaint(written("steps: x\nlearn: {lrr: 1}"), ["seed=-3"])
    assert len(said.split("\n")) == 3


@pytest.mark.parametrize(("text", "line"), [("steps: 3\nlearn: [\n", 3), ("a: b: c\n", 1)])
def test_a_syntax_error_names_file_and_line(written, text, line):
    file = written(text)
    assert re.match(rf"{re.escape(str(file))} line {line} is not valid YAML: ", complaint(file))


def test_a_file_that_is_missing_or_no_mapping_is_a_sentence(written, tmp_path):
    assert "does not exist" in complaint(tmp_path / "none.yaml")
    assert "could not be read" in complaint(tmp_path)
    assert "holds list, not a mapping" in complaint(written("- 1\n- 2\n"))


def test_an_empty_file_is_the_defaults(written):
    assert load([written("# nothing yet\n")]) == Config()


@pytest.mark.parametrize("override", ["steps", "=3", ""])
def test_what_is_no_override_is_a_sentence(override):
    assert f'"{override}" is not an override; write key=value' in complaint(None, [override])


def test_a_config_error_is_a_users_mistake_and_a_value_error():
    assert issubclass(ConfigError, GlasshouseError)
    assert issubclass(ConfigError, ValueError)


def test_a_dumped_config_loads_as_it_was(written):
    config = load(
        [],
        [
            "learn.learning_rate=3e-7",
            "learn.clip_low=0.1",
            "task.style=direct",
            "task.options={count: [1, 2], name: ünï}",
            'generate.stop=["a: b", "#", "yes"]',
        ],
    )
    assert load([written(dump(config))]) == config
    assert load([written(dump(Config()))]) == Config()


def test_the_dump_names_every_field_in_the_order_of_declaration():
    tree = yaml.safe_load(dump(Config()))
    assert list(tree) == list(Config.model_fields)
    for key, *_ in describe():
        branch = tree
        for part in key.split("."):
            branch = branch[part]


def test_every_field_is_described():
    rows = describe()
    described = {key: text for key, _, _, text in rows}
    assert len(described) == len(rows)

    def look(section: type[Section], prefix: str) -> None:
        for name, field in section.model_fields.items():
            kind = field.annotation
            if isinstance(kind, type) and issubclass(kind, Section):
                look(kind, f"{prefix}{name}.")
            else:
                assert len(described[prefix + name]) > 3

    look(Config, "")
    for key, kind, _, text in rows:
        assert kind, key
        assert text, key
        assert "\n" not in text


def test_a_description_shows_type_and_default():
    rows = {key: (kind, default) for key, kind, default, _ in describe()}
    assert rows["steps"] == ("int", "60")
    assert rows["learn.learning_rate"] == ("float", "0.0003")
    assert rows["task.style"] == ("cot | direct", "cot")
    assert rows["learn.clip_low"] == ("float or empty", "null")
    assert rows["data.source"] == ("fresh | fixed", "fresh")


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        Config().steps = 3
