"""The registry of measures: everything that is known about a measure before it is measured.

A measure id is a dotted snake_case name. Its last segment names the measure; the segments before it
say where it comes from and which monitor it belongs to:

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
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from glasshouse.measurement.measures import SPECS, Family, MeasureSpec, share


class MonitorName(NamedTuple):
    """A built-in monitor, as people read it and as its random streams are keyed."""

    label: str
    stream: str


SOURCES = ("train", "interventions", "monitors", "organism", "substitution")
"""First segments that name the training steps, or an evaluation of `glasshouse monitor`."""

MONITORS: Mapping[str, MonitorName] = MappingProxyType(
    {
        "disclosure_rule": MonitorName("disclosure rule", "discloses"),
        "empty_cot_rule": MonitorName("empty-CoT rule", "no CoT"),
        "ngrams_base": MonitorName("n-grams base", "ngrams-base"),
        "ngrams_refit": MonitorName("n-grams refit", "ngrams-refit"),
        "other_words_rule": MonitorName("rule of other words", "other words"),
        "step_verifier": MonitorName("step verifier", "steps"),
        "step_verifier_with_answer": MonitorName("step verifier with answer", "steps+answer"),
        "synonym_rule": MonitorName("synonym rule", "substitutes"),
        "unrelated_words_rule": MonitorName("unrelated-words rule", "idles"),
    }
)

SCOPES = {"prompt": "prompt", "answer": "answer", "cot": "cot", "cot_answer": "cot+answer"}
"""Segments that name a fitted monitor's scope, and the scopes."""

MEASURES: Mapping[str, MeasureSpec] = MappingProxyType({spec.id: spec for spec in SPECS})
"""Registered measures by the last segment of their id, in the order in which tables print them."""

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
    places = {spec.id: spec.headline for spec in SPECS if spec.family in families}
    return sorted(filter(places.__getitem__, places), key=places.__getitem__)


def companion_measures() -> list[str]:
    """Ids of the measures that a study always reports: a change of the model's capability or length may explain the
    measure in question."""
    places = {spec.id: spec.companion for spec in SPECS}
    return sorted(filter(places.__getitem__, places), key=places.__getitem__)


def sort_measures(measures: Iterable[str]) -> list[str]:
    """Ids in the order of the registry; unregistered ones follow."""
    order = {id: place for place, id in enumerate(MEASURES)}
    last = len(order)
    return sorted(measures, key=lambda m: order.get(m, order.get(m.rpartition(".")[2], last)))


def lookup(measure: str) -> MeasureSpec:
    """The spec of a measure id, with the monitor's name in its label and stream.
    Example: `lookup("organism.ngrams_base.cot.tpr").label` is "TPR, n-grams base (cot)"."""
    segments = measure.split(".")
    spec = MEASURES.get(measure) or MEASURES.get(segments[-1]) or _pass_at_k(segments[-1])
    if spec is None:
        return MeasureSpec(id=measure, label=measure, stream=measure)
    owner = _owner(measure)
    if not owner:
        return replace(spec, id=measure)
    monitor = _monitor_name(owner)
    return replace(
        spec,
        id=measure,
        label=f"{spec.label}, {monitor.label}",
        stream=f"{monitor.stream}: {spec.stream}",
    )


def monitor_stream(monitor: str) -> str:
    """What keys the random streams of a monitor's measures: must never change for a built-in one."""
    return _monitor_name(monitor).stream


def owner_of(measure: str) -> str:
    """The label of the monitor that a measure belongs to; empty if it belongs to none.
    Example: `owner_of("organism.disclosure_rule.gmean2")` is "disclosure rule"."""
    owner = _owner(measure)
    return _monitor_name(owner).label if owner else ""


def _owner(measure: str) -> str:
    """The segments between a measure's source and its name."""
    segments = measure.split(".")
    return ".".join(segments[1:-1] if segments[0] in SOURCES else segments[:-1])


def _monitor_name(owner: str) -> MonitorName:
    """Of a monitor's id, with or without a scope; a user's own monitor keeps its name."""
    if owner in MONITORS:
        return MONITORS[owner]
    if "~" in owner:  # a pair of monitors
        labels, streams = zip(*map(_monitor_name, owner.split("~")), strict=True)
        return MonitorName(" and ".join(labels), "~".join(streams))
    monitor, _, scope = owner.rpartition(".")
    if monitor in MONITORS and scope in SCOPES:
        name = MONITORS[monitor]
        return MonitorName(f"{name.label} ({SCOPES[scope]})", f"{name.stream} {SCOPES[scope]}")
    return MonitorName(owner, owner)


def _pass_at_k(segment: str) -> MeasureSpec | None:
    if not (match := re.fullmatch(r"pass_at_(\d+)", segment)):
        return None
    sentence = f"Chance that at least one of {match[1]} samples is correct."
    return share(segment, f"pass@{match[1]}", sentence=sentence, tabled=False)
