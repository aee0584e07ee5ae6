"""The study file: bases, seeds, arms, measures and questions. Nothing is run here.

In every arm, seed s starts from the same base, sees the problems in the same order and is evaluated
on the same problems, so that arms are compared within seeds.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from glasshouse.config.loading import (
    diff_configs,
    dump_yaml,
    merge_layers,
    read_yaml_file,
    resolve_layers,
)
from glasshouse.config.schema import Config, Section
from glasshouse.errors import ConfigError, did_you_mean, plain_reason
from glasshouse.measurement.registry import lookup
from glasshouse.study.records import hash_content

START = "start"
"""The reference of a question that is not an arm: the same run before its first step."""
NO_NULL_ARM = "none"
"""A question's `null_arm` if it has none although the study has one."""
RESERVED_KEYS = {"seed": "seeds (or --seeds)", "model": "bases", "out": "--out"}
"""Config keys that the study sets for each run, and where their values come from."""
SEEDS_HELP = (
    "give a number of seeds of at least 1 (`8`), a range (`{first: 100, count: 12}`) or a list of "
    "different numbers of at least 0."
)
MIN_RANDOM_BASES = 4
"""With at least this many bases they are a random effect: results hold for other bases as well."""
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
ROWS_FILE = "rows.jsonl"
"""In the results of a run: it is finished once this file exists."""


class Question(Section):
    """One comparison, with its expected result."""

    ask: str = Field(min_length=1)
    """The question in words."""
    measure: str
    """A measure in the table, such as reliance."""
    arm: str
    """The arm that the question is about."""
    against: str = ""
    """The reference: `start` (the same run before RL) or another arm. Empty: the study's `control`."""
    against_measure: str = ""
    """Instead of `against`: another measure of the same runs, such as that of another monitor."""
    null_arm: str = ""
    """The null arm for this question. Empty: the study's `null_arm`. `none`: no null arm."""
    at: int | None = Field(None, ge=0)
    """The step to compare at. Empty: the last."""
    expect: Literal["rises", "falls", "unchanged"]
    """The predicted result; `unchanged` needs a margin."""
    margin: float | None = Field(None, gt=0)
    """With `unchanged`: the largest difference from zero that counts as no change."""
    criterion: float | None = Field(None, gt=0)
    """For an outcome that some bases show and others do not: the effect, in the expected direction, from which on a
    base counts. The answer then also says in how many bases (with fewer than four: seeds) it is reached, and the mean
    over these."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.expect == "unchanged") != (self.margin is not None):
            raise ValueError("`expect: unchanged` needs a margin, and no other `expect` takes one.")
        if self.criterion is not None and self.margin is not None:
            raise ValueError("`criterion` needs `expect: rises` or `falls`.")
        if self.against_measure and self.against:
            raise ValueError("set either `against_measure` (same arm) or `against` (another arm).")
        return self


class Preparation(Section):
    """Supervised training that continues every base of an arm before RL (`glasshouse sft`)."""

    mixture: list[dict[str, Any]] = Field(min_length=1)
    """The demonstrations, as in a recipe."""
    steps: int = Field(ge=1)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(1e-3, gt=0)


class Frozen(Section):
    """What was registered, when, and a hash of it; written by `glasshouse study freeze`."""

    date: datetime.date
    """The day on which the file was frozen (UTC)."""
    sha256: str
    """Hash of `content`."""
    content: dict[str, Any] = Field(min_length=1)
    """A copy of bases, seeds, config, arms and questions, so that later changes can be listed; the commit of the code,
    the SHA-256 of each base, and what a pilot measured."""
    earlier: tuple[dict[str, Any], ...] = ()
    """Date, hash and commit of every earlier freeze of this file, with what was changed after it."""

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        if self.sha256 != hash_content(self.content):
            raise ValueError(
                "its content does not match its sha256: the section was edited by hand. Restore it, "
                "for example with git."
            )
        return self


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One run of a study."""

    arm: str
    base: str
    seed: int
    path: Path
    config: Config
    preparation: Preparation | None = None

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        return (self.path / "results" / ROWS_FILE).is_file()


class Study(Section):
    """A whole study.

    Example: `study = load_study("studies/leaked_hint/study.yaml", ["steps=4"])`
    """

    title: str = Field(min_length=1)
    """The name of the study."""
    about: str = ""
    """What it is about, in a sentence or two."""
    bases: tuple[str, ...] = Field(min_length=1)
    """Starting models; seed s starts from bases[s % len(bases)] in every arm."""
    seeds: tuple[int, ...] = tuple(range(8))
    """Runs per arm: a number n (seeds 0 to n − 1), {first: 100, count: 12}, or a list."""
    reuse_seeds: tuple[str, ...] = ()
    """Names of studies whose seeds this one may use again, with the same bases."""
    evaluation_problems: Literal["shared", "per_seed"] = "shared"
    """`shared`: all runs are evaluated on the same held-out problems. `per_seed`: each seed has its own,
    the same in every arm, so that intervals include the variance between problems."""
    config: dict[str, Any] = Field({})
    """What all runs share, with the keys of any configuration file."""
    arms: dict[str, dict[str, Any]] = Field(min_length=1)
    """What differs, by arm: nested or dotted keys."""
    prepare: dict[str, Preparation] = Field({})
    """By arm: supervised training before RL. Prepared arms stay paired: the same base of a seed is continued."""
    control: str = ""
    """The reference arm of questions without `against`. Empty: the first arm."""
    null_arm: str | None = None
    """The arm whose reward is noise; its effect is reported next to every effect."""
    null_at: Literal["step", "kl"] = "step"
    """Where the null arm is taken: at the step of the arm, or where its KL from the start has reached that of the arm,
    seed by seed, interpolated between evaluations: there both have moved equally far."""
    monitors: tuple[str, ...] = ()
    """Monitors outside the reward, such as step_verifier or ngrams_base.cot. A question about a monitor's measure
    without its name (`undetected_use`) is answered for each of them that is informative at the base: only what holds
    for all of these is claimed."""
    measures: dict[str, str] = Field({})
    """The curves to draw, in this order, with a description of each."""
    questions: tuple[Question, ...] = ()
    frozen: Frozen | None = None
    """Written by `glasshouse study freeze`, never by hand."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, tree: Any) -> Any:
        """`outcome:` without a value is an arm in which nothing differs; the first arm is the control."""
        if not isinstance(tree, Mapping) or not isinstance(tree.get("arms"), Mapping):
            return tree
        arms = {name: {} if keys is None else keys for name, keys in tree["arms"].items()}
        return {**tree, "arms": arms, "control": tree.get("control") or next(iter(arms), "")}

    @field_validator("seeds", mode="before")
    @classmethod
    def _list_seeds(cls, seeds: Any) -> Any:
        """A number or {first, count} as a list."""
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            return range(seeds)
        match seeds:
            case {"first": int() as first, "count": int() as count} if len(seeds) == 2:
                return range(first, first + count)
        return seeds

    @field_validator("seeds")
    @classmethod
    def _check_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError(SEEDS_HELP)
        return tuple(sorted(seeds))

    @model_validator(mode="after")
    def _check_arms(self) -> Self:
        for name in self.arms:
            if name in (START, NO_NULL_ARM) or not ARM_NAME.fullmatch(name):
                raise ValueError(
                    f'an arm cannot be called "{name}": use letters, digits, "_", "." and "-" (its name '
                    f'becomes a folder), and not "{START}" or "{NO_NULL_ARM}".'
                )
        named = [("control", self.control), ("null_arm", self.null_arm or self.control)]
        for number, question in enumerate(self.questions):
            reference, null_arm = self.reference_of(question), self.null_arm_of(question)
            if reference == question.arm and not question.against_measure:
                raise ValueError(
                    f'questions.{number} compares the arm "{question.arm}" with itself; set `against`.'
                )
            named.append((f"questions.{number}.arm", question.arm))
            if reference != START:
                named.append((f"questions.{number}.against", reference))
            if null_arm:
                named.append((f"questions.{number}.null_arm", null_arm))
        named += [("prepare", arm) for arm in self.prepare]
        for key, arm in named:
            if arm not in self.arms:
                raise ValueError(
                    f'{key} is "{arm}", which is no arm.{did_you_mean(arm, self.arms)}'
                )
        return self

    def reference_of(self, question: Question) -> str:
        """What a question compares its arm with: an arm (itself with `against_measure`) or `start`."""
        return question.arm if question.against_measure else question.against or self.control

    def null_arm_of(self, question: Question) -> str | None:
        return None if question.null_arm == NO_NULL_ARM else question.null_arm or self.null_arm

    def named_measures(self) -> list[str]:
        """Every measure that the study draws or asks about."""
        asked = [name for q in self.questions for name in (*self.measures_of(q), q.against_measure)]
        return list(dict.fromkeys(filter(None, [*self.measures, *asked])))

    def measures_of(self, question: Question) -> list[str]:
        """The measure of a question; if it names no monitor, that of each of the study's monitors."""
        is_of_monitor = lookup(question.measure).monitor_values and "." not in question.measure
        if not is_of_monitor or not self.monitors:
            return [question.measure]
        return [f"{monitor}.{question.measure}" for monitor in self.monitors]

    def base_of(self, seed: int) -> str:
        return self.bases[seed % len(self.bases)]

    def run_config(self, arm: str, seed: int, out: Path | None = None) -> Config:
        """The configuration of one run."""
        reserved = {"seed": seed, "model": self.base_of(seed), "out": str(out or "")}
        if self.evaluation_problems == "per_seed":
            reserved["evaluate.seed"] = seed
        return resolve_layers(
            [("config", self.config), (f"arms.{arm}", self.arms[arm]), ("the study", reserved)]
        )

    def arm_seed_pairs(self) -> Iterator[tuple[str, int]]:
        """(arm, seed) in training order: all arms of a seed, then the next seed, so that an
        unfinished study contains complete pairs."""
        return ((arm, seed) for seed in self.seeds for arm in self.arms)

    def with_seeds(self, count: int) -> Study:
        """The study with this many seeds. More than it has: the numbers that follow."""
        if count < 1:
            raise ConfigError(f'"seeds" is {count}: {SEEDS_HELP}')
        following = range(self.seeds[-1] + 1, self.seeds[-1] + 1 + count)
        return self.model_copy(update={"seeds": (*self.seeds, *following)[:count]})

    def run_differences(self, other: Study) -> list[str]:
        """What makes the runs of two studies different. More seeds or arms do not."""
        differences = []
        if self.bases != other.bases:
            differences.append(f"bases ({', '.join(self.bases)} → {', '.join(other.bases)})")
        for arm in [arm for arm in self.arms if arm in other.arms]:
            changed = diff_configs(self.run_config(arm, 0), other.run_config(arm, 0))
            differences += [
                f"{key} in the arm {arm} ({old!r} → {new!r})"
                for key, (old, new) in changed.items()
                if key != "model"
            ]
        return differences


def format_seeds(seeds: Sequence[int]) -> str:
    """`0–7`, or `3, 5` if they are not consecutive."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def study_name(file: Path) -> str:
    """The file's name, or that of its folder for a `study.yaml` or its next edition."""
    return file.resolve().parent.name if file.stem in ("study", "edition") else file.stem


def load_study(
    file: str | Path, overrides: Sequence[str] = (), *, seeds: int | None = None
) -> Study:
    """Read a study file, with another number of seeds if given. Overrides apply to its `config`; what an
    arm sets takes precedence.

    Example: `load_study("training/digits.reinforce/study.yaml", ["steps=4"], seeds=2)`
    """
    study = parse_study(read_yaml_file(Path(file)), str(file))
    if overrides:
        _refuse_reserved_keys(merge_layers([overrides]), "the command line")
        resolve_layers([(str(file), study.config), ("the command line", overrides)])
        config = merge_layers([study.config, overrides])
        study = study.model_copy(update={"config": config})
    for arm in study.arms:
        try:
            study.run_config(arm, 0)
        except ConfigError as error:
            raise ConfigError(f"{file}, {error}") from None
    for number, question in enumerate(study.questions):
        null_arm = study.null_arm_of(question) or question.arm
        if study.run_config(question.arm, 0).task != study.run_config(null_arm, 0).task:
            raise ConfigError(
                f'{file}, questions.{number}: the null arm "{null_arm}" has other prompts than the arm '
                f'"{question.arm}" (their task differs), so their changes are not comparable. Give the '
                f"question a null arm with the same task, or `null_arm: {NO_NULL_ARM}`."
            )
    return study if seeds is None else study.with_seeds(seeds)


def parse_study(tree: Mapping[str, Any], where: str) -> Study:
    """Validate a tree; the error names every key that is wrong."""
    try:
        study = Study.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(dict(e), where) for e in error.errors())) from None
    _refuse_reserved_keys(merge_layers([study.config]), f"{where}, config")
    for arm, overrides in study.arms.items():
        _refuse_reserved_keys(merge_layers([overrides]), f"{where}, arm {arm}")
        evaluate = merge_layers([study.config, overrides]).get("evaluate") or {}
        fixed = {"seed", "file"} & set(evaluate)
        if fixed and study.evaluation_problems == "per_seed":
            raise ConfigError(
                f"{where}, arm {arm}: evaluate.{min(fixed)} fixes the held-out problems, but "
                "`evaluation_problems: per_seed` gives each seed its own. Remove one of the two."
            )
    return study


def dump_study(study: Study) -> str:
    """The study as YAML, which `load_study` reads back."""
    return dump_yaml(study.model_dump(mode="json"))


def _refuse_reserved_keys(tree: Mapping[str, Any], where: str) -> None:
    for key, source in RESERVED_KEYS.items():
        if key in tree:
            raise ConfigError(f"{where}: {key} is set by the study, from {source}. Remove it.")


def _explain(error: dict[str, Any], where: str) -> str:
    """One pydantic error: where, what is wrong, and what to do."""
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        section = Question if error["loc"][0] == "questions" else Study
        key = str(error["loc"][-1])
        return f'{where}: there is no key "{path}".{did_you_mean(key, section.model_fields)}'
    if error["type"] == "missing":
        return f'{where}: "{path}" is missing.'
    reason = plain_reason(error["msg"])
    if error["type"] == "value_error":
        return f"{where}{path and f', {path}'}: {reason}"
    return f'{where}: "{path}" is {error["input"]!r}: {reason}.'
