"""The registry of measures: everything that is known about a measure before it is measured.

A measure is an entry of `measures.yaml`. Terminal, report, study table and page have it from there. A measure id is a
dotted snake_case name. Its last segment names the measure; the segments before it say where it comes from and which
monitor it belongs to:

    reliance                                 a run's own evaluation
    disclosure_rule.undetected_use           the same, of one monitor
    train.length                             a metric of the training steps
    interventions.necessity_uplift           an evaluation of `glasshouse monitor`
    organism.ngrams_base.cot_answer.auroc    of a fitted monitor that reads the scope cot+answer

`lookup` resolves any of them. An id that is not registered (a user's own metric) gets a neutral
spec: its id as label, no bounds, no direction, no family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from glasshouse.config.loading import read_yaml_file
from glasshouse.measurement.columns import Columns, Scores
from glasshouse.measurement.estimates import MONITOR_VALUES, VALUES, Values

Report = Literal["training", "study", "monitors", "organism", "fitted", "file"]
"""What reports measures of given rollouts: evaluations in training; a study, of the rollouts that it keeps;
`glasshouse monitor` for the monitors of an ordinary task, of an organism, and for fitted monitors; and
`glasshouse measure`."""


class Family(StrEnum):
    """Measures that share a panel of the page; the value is its title."""

    NONE = ""
    REWARD = "Reward"
    ACCURACY = "Held-out accuracy"
    PLANTED = "Planted behaviour"
    UNDETECTED = "Undetected use"
    DISCLOSURE = "Disclosure"
    COT = "Does the answer depend on the CoT?"
    FLAGS = "Flagged by monitors"
    AUROC = "Monitors, AUROC"
    HINT = "Planted behaviour, by intervention"
    STATE = "State words in the CoT"
    COT_LENGTH = "CoT length"
    LENGTH = "Completion length"
    KL = "KL from the start"
    ENTROPY = "Entropy"
    ZERO_VARIANCE = "Zero-variance groups"
    RULES = "Extraction rules"
    LOGPROBS = "Log-probability difference"
    PHASES = "Time per phase"
    THROUGHPUT = "Tokens per second"
    MEMORY = "Peak memory"
    GRADIENT = "Gradient norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSpec:
    """What is known about a measure before it is measured.

    Example: `lookup("step_verifier.undetected_use").label` is "undetected use, step verifier".
    """

    id: str
    label: str
    """What tables and figures print."""
    sentence: str = ""
    """The definition."""
    family: Family = Family.NONE
    """The panel of the page that draws it; NONE: it is only in tables."""
    unit: str = ""
    """Empty for shares, and where the label names it."""
    bounds: tuple[float, float] | None = None
    """They give the ceiling of an effect and the limits of a figure."""
    direction: Literal["higher", "lower", "none"] = "none"
    """Which way the measure moves as the model gets more monitorable."""
    headline: int = 0
    """Its place among the measures that are stated first (list of runs, summary); 0: not among them."""
    companion: int = 0
    """Its place among the measures that a study always reports, since a loss of capability may explain a result."""
    detail: bool = False
    """Left out of the table in the terminal; monitor.json and the report have it."""
    tabled: bool = True
    """Whether a study's table has it."""
    needs: frozenset[str] = frozenset()
    """`training`: the value is that of a training step. `labels`: the behaviour of every rollout is known.
    `arms`: there are rollouts of the planted and of the control arm."""
    values: Callable[[Columns], Values] | None = None
    """Its values, from the columns of rollouts."""
    monitor_values: Callable[[Columns, Scores], Values] | None = None
    """The same for a measure of a monitor."""
    reports: tuple[Report, ...] = ()
    """What computes these values."""

    @property
    def label_with_unit(self) -> str:
        """Example: "CoT length, tokens"."""
        return f"{self.label}, {self.unit}" if self.unit else self.label


def _make_spec(id: str, entry: dict[str, Any]) -> MeasureSpec:
    column, arm, bounds = (entry.pop(name, None) for name in ("column", "arm", "bounds"))
    return MeasureSpec(
        id=id,
        label=entry.pop("label", id.replace("_", " ")),
        family=Family[entry.pop("family", "none").upper()],
        bounds=bounds and (float(bounds[0]), float(bounds[1])),
        needs=frozenset(entry.pop("needs", ())),
        reports=tuple(entry.pop("reports", ())),
        values=partial(_mean_of_column, column, arm) if column else VALUES.get(id),
        monitor_values=MONITOR_VALUES.get(id),
        **entry,
    )


def _mean_of_column(column: str, arm: int | None, c: Columns) -> Values:
    return c.mean(getattr(c, column), None if arm is None else c.planted == arm)


_ENTRIES = read_yaml_file(Path(__file__).with_name("measures.yaml"))
MEASURES = MappingProxyType({id: _make_spec(id, entry) for id, entry in _ENTRIES.items()})
"""Registered measures by the last segment of their id, in the order in which tables print them."""
SOURCES = ("train", "interventions", "monitors", "organism", "substitution")
"""First segments that name the training steps, or an evaluation of `glasshouse monitor`."""
MONITORS: Mapping[str, str] = {
    "disclosure_rule": "disclosure rule",
    "empty_cot_rule": "empty-CoT rule",
    "ngrams_base": "n-grams base",
    "ngrams_refit": "n-grams refit",
    "other_words_rule": "rule of other words",
    "step_verifier": "step verifier",
    "step_verifier_with_answer": "step verifier with answer",
    "synonym_rule": "synonym rule",
    "unrelated_words_rule": "unrelated-words rule",
}
SCOPES = {"prompt": "prompt", "answer": "answer", "cot": "cot", "cot_answer": "cot+answer"}
"""Segments that name a fitted monitor's scope, and the scopes."""
HEADLINE_ACCURACY = "pass_at_1"
"""The accuracy that a page, a table or a verdict states first. A greedy answer can flip although its
probability has hardly changed, so greedy accuracy is shown beside it, labelled."""


def headline_accuracy(results: Mapping[str, object]) -> str:
    """The id of the first accuracy to show: the greedy one if nothing was sampled
    (`evaluate.samples: 0`)."""
    return HEADLINE_ACCURACY if HEADLINE_ACCURACY in results else "accuracy"


def headline_measures(*families: Family) -> list[str]:
    """Ids of the measures of these families that are stated first, in this order.
    Example: `headline_measures(Family.ACCURACY)` is `["pass_at_1", "accuracy"]`."""
    found = [spec for spec in MEASURES.values() if spec.headline and spec.family in families]
    return [spec.id for spec in sorted(found, key=lambda spec: spec.headline)]


def companion_measures() -> list[str]:
    """Ids of the measures that a study always reports: a change of the model's capability or length may explain the
    measure in question."""
    found = [spec for spec in MEASURES.values() if spec.companion]
    return [spec.id for spec in sorted(found, key=lambda spec: spec.companion)]


def sort_measures(measures: Iterable[str]) -> list[str]:
    """Ids in the order of the registry; unregistered ones follow."""
    order = {id: place for place, id in enumerate(MEASURES)}
    last = len(order)
    return sorted(measures, key=lambda m: order.get(m, order.get(m.rpartition(".")[2], last)))


def lookup(measure: str) -> MeasureSpec:
    """The spec of a measure id, with the monitor's name in its label.
    Example: `lookup("organism.ngrams_base.cot.tpr").label` is "TPR, n-grams base (cot)"."""
    segments = measure.split(".")
    spec = MEASURES.get(measure) or MEASURES.get(segments[-1]) or _pass_at_k(segments[-1])
    if spec is None:
        return MeasureSpec(id=measure, label=measure)
    owner = owner_of(measure)
    return replace(spec, id=measure, label=f"{spec.label}, {owner}" if owner else spec.label)


def owner_of(measure: str) -> str:
    """The label of the monitor that a measure belongs to; empty if it belongs to none.
    Example: `owner_of("organism.disclosure_rule.gmean2")` is "disclosure rule"."""
    segments = measure.split(".")
    return _label_monitor(".".join(segments[1:-1] if segments[0] in SOURCES else segments[:-1]))


def _label_monitor(owner: str) -> str:
    """The label of a monitor, with or without a scope, or of a pair of them; a user's own monitor keeps its name."""
    if "~" in owner:
        return " and ".join(map(_label_monitor, owner.split("~")))
    monitor, _, scope = owner.rpartition(".")
    if monitor in MONITORS and scope in SCOPES:
        return f"{MONITORS[monitor]} ({SCOPES[scope]})"
    return MONITORS.get(owner, owner)


def _pass_at_k(segment: str) -> MeasureSpec | None:
    if not (match := re.fullmatch(r"pass_at_(\d+)", segment)):
        return None
    sentence = f"Chance that at least one of {match[1]} samples is correct."
    label, bounds = f"pass@{match[1]}", (0.0, 1.0)
    return MeasureSpec(id=segment, label=label, sentence=sentence, bounds=bounds, tabled=False)
