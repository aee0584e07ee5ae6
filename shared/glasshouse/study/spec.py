"""The study file as a typed tree: bases, seeds, arms, measures and questions; nothing is run here.

Seed s starts from the same base, sees problems in the same order and is evaluated on the same
problems in every arm, so that arms are compared within seeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from glasshouse import config as configs
from glasshouse.config import Config, Section
from glasshouse.errors import ConfigError, nearest

START = "start"
"""What a question is asked against, beside arms: the same run before its first step."""
OWN = {"seed": "seeds (or --seeds)", "model": "bases", "out": "--out"}
"""Keys of a run that the study sets itself, and by what."""
ARM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Question(Section):
    """One comparison, with what is expected of it before it is made."""

    ask: str = Field(min_length=1)
    """The question as people put it."""
    measure: str
    """A name of the table, such as reliance or discloses.disclosure."""
    arm: str
    """Whose value is asked about."""
    against: str = ""
    """`start`: the same run before RL; or another arm. Empty: the study's `control`."""
    over: str = ""
    """Another measure of the same runs, to compare with instead: one monitor with another, say."""
    null_arm: str = ""
    """The arm of noise that belongs to this arm; empty: the study's `null_arm`."""
    at: int | Literal["accuracy"] | None = None
    """At which step; empty: the last; `accuracy`: where both arms are equally accurate."""
    expect: Literal["rises", "falls", "unchanged"]
    """What would count as shown; `unchanged` needs a margin."""
    margin: float | None = Field(None, gt=0)
    """With `unchanged`: how far from zero still counts as no change."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.expect == "unchanged") != (self.margin is not None):
            raise ValueError("`expect: unchanged` needs a margin, and only it takes one")
        if self.over and self.against:
            raise ValueError("`over` compares within an arm, `against` with another: give one")
        if self.at == "accuracy" and (self.over or self.against == START):
            raise ValueError("`at: accuracy` compares two arms; this question is about one")
        if isinstance(self.at, int) and self.at < 0:
            raise ValueError("`at` is a step, and steps begin at 0")
        return self


class Study(Section):
    """A whole study.

    Example: `study = load(Path("studies/leaked_hint.yaml"), ["steps=4"])`
    """

    title: str = Field(min_length=1)
    """Its name, for people."""
    about: str = ""
    """What it is about, in a sentence or two."""
    bases: tuple[str, ...] = Field(min_length=1)
    """Starting models; seed s starts from bases[s % len(bases)], in every arm."""
    seeds: int = Field(8, ge=1)
    """Runs an arm."""
    config: dict[str, Any] = Field({})
    """What every run has: the tree of any configuration file."""
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    """By name, what differs: nested trees or dotted keys."""
    control: str = ""
    """The arm that others are compared with; empty: the first."""
    null_arm: str | None = None
    """The arm whose reward is noise; its own effect stands beside every effect."""
    measures: dict[str, str] = Field({})
    """The curves that are drawn, in this order, and what each says."""
    questions: tuple[Question, ...] = ()

    @field_validator("arms", mode="before")
    @classmethod
    def _nothing_differs(cls, arms: Any) -> Any:
        """`outcome:` with nothing after it is an arm in which nothing differs."""
        if isinstance(arms, Mapping):
            return {name: {} if given is None else given for name, given in arms.items()}
        return arms

    @field_validator("arms")
    @classmethod
    def _arms_have_names(cls, arms: dict[str, Any]) -> dict[str, Any]:
        for name in arms:
            if name == START or not ARM.fullmatch(name):
                raise ValueError(
                    f'an arm cannot be called "{name}": its name becomes a folder (letters, digits, '
                    f'"_", "." and "-"), and "{START}" is a run before its first step'
                )
        return arms

    @model_validator(mode="before")
    @classmethod
    def _control_is_first(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and not tree.get("control"):
            arms = tree.get("arms")
            return {
                **tree,
                "control": str(next(iter(arms), "")) if isinstance(arms, Mapping) else "",
            }
        return tree

    @model_validator(mode="after")
    def _arms_exist(self) -> Self:
        asked = [("control", self.control), ("null_arm", self.null_arm or self.control)]
        for number, question in enumerate(self.questions):
            asked.append((f"questions.{number}.arm", question.arm))
            if question.against not in ("", START):
                asked.append((f"questions.{number}.against", question.against))
            if question.null_arm:
                asked.append((f"questions.{number}.null_arm", question.null_arm))
            if self.against(question) == question.arm and not question.over:
                raise ValueError(
                    f'questions.{number} compares the arm "{question.arm}" with itself; set `against`'
                )
        for where, arm in asked:
            if arm not in self.arms:
                raise ValueError(f'{where} is "{arm}", which is no arm.{nearest(arm, self.arms)}')
        return self

    def against(self, question: Question) -> str:
        """What a question compares its arm with: an arm's name (with `over`, its own), or `start`."""
        return question.arm if question.over else question.against or self.control

    def noise(self, question: Question) -> str | None:
        """The null arm that stands beside it."""
        return question.null_arm or self.null_arm

    def base(self, seed: int) -> str:
        return self.bases[seed % len(self.bases)]

    def run(self, arm: str, seed: int, out: Path | None = None) -> Config:
        """The configuration of one run."""
        place = {"seed": seed, "model": self.base(seed), "out": str(out or "")}
        return configs.resolve(
            [("config", self.config), (f"arms.{arm}", self.arms[arm]), ("the study", place)]
        )

    def runs(self) -> Iterator[tuple[str, int]]:
        """(arm, seed) in the order in which they are run: all arms of a seed, then the next seed,
        so that an unfinished study has whole pairs."""
        return ((arm, seed) for seed in range(self.seeds) for arm in self.arms)

    def part(self, arms: Sequence[str] | None = None, seeds: int | None = None) -> Study:
        """The same study with these arms and so many seeds; questions about other arms go."""
        chosen = list(self.arms) if arms is None else [arm for arm in self.arms if arm in arms]
        for arm in arms or ():
            if arm not in self.arms:
                raise ConfigError(f'The study has no arm "{arm}".{nearest(arm, self.arms)}')
        kept = [
            question.model_dump()
            | {"against": "" if question.over else self.against(question)}
            | {"null_arm": question.null_arm if question.null_arm in chosen else ""}
            for question in self.questions
            if {question.arm, self.against(question)} <= {*chosen, START}
        ]
        tree = self.model_dump() | {
            "arms": {arm: self.arms[arm] for arm in chosen},
            "control": self.control if self.control in chosen else "",
            "null_arm": self.null_arm if self.null_arm in chosen else None,
            "questions": kept,
            "seeds": self.seeds if seeds is None else seeds,
        }
        return check(tree, "the study")

    def differs(self, other: Study) -> list[str]:
        """What makes runs of the two studies different, in words; more seeds and more arms do not."""
        found = []
        if self.bases != other.bases:
            found.append(f"bases ({', '.join(self.bases)} → {', '.join(other.bases)})")
        for arm in self.arms:
            if arm in other.arms:
                before, after = self.run(arm, 0), other.run(arm, 0)
                old, new = dict(configs.leaves(before)), dict(configs.leaves(after))
                found += [
                    f"{key} in the arm {arm} ({old.get(key)!r} → {new.get(key)!r})"
                    for key in configs.changes(before, after)
                    if key != "model"
                ]
        return found


def name(file: Path) -> str:
    """What a study is called: as its file, or as the experiment that it is of."""
    return file.resolve().parent.name if file.stem == "study" else file.stem


def load(file: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file; overrides are laid over its `config`, under what its arms set."""
    tree = configs.read(file)
    study = check(tree, str(file))
    if overrides:
        _not_own(configs.overlaid([overrides]), "the command line")
        configs.resolve([(str(file), study.config), ("the command line", overrides)])
        given = configs.overlaid([study.config, overrides])
        study = study.model_copy(update={"config": given})
    for arm in study.arms:
        try:
            study.run(arm, 0)
        except ConfigError as error:
            raise ConfigError(f"{file}, {error}") from None
    return study


def check(tree: Mapping[str, Any], where: str) -> Study:
    """A tree as a study, or a sentence for each thing that is wrong with it."""
    try:
        study = Study.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(dict(e), where) for e in error.errors())) from None
    _not_own(configs.overlaid([study.config]), f"{where}, config")
    for arm, given in study.arms.items():
        _not_own(configs.overlaid([given]), f"{where}, arm {arm}")
    return study


def dump(study: Study) -> str:
    """The study as YAML; read again, it is the same."""
    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _not_own(tree: Mapping[str, Any], where: str) -> None:
    for key, instead in OWN.items():
        if key in tree:
            raise ConfigError(f"{where}: {key} is set by the study itself, from {instead}.")


def _sentence(error: dict[str, Any], where: str) -> str:
    """One pydantic error as: where, what, and what to do."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        section = Question if error["loc"][0] == "questions" else Study
        name = str(error["loc"][-1])
        return f'{where}: there is no key "{path}".{nearest(name, section.model_fields)}'
    message = error["msg"].removeprefix("Value error, ").rstrip(".?")
    end = "?" if error["msg"].endswith("?") else "."
    if error["type"] == "missing":
        return f'{where}: "{path}" is missing.'
    if not path:
        return f"{where}: {message}{end}"
    if error["type"] == "value_error":
        return f"{where}, {path}: {message}{end}"
    return f'{where}: "{path}" is {error["input"]!r}: {message}{end}'
