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

from glasshouse.measurement.measures import SPECS, Family, MeasureSpec, share

SOURCES = ("train", "interventions", "monitors", "organism", "substitution")
"""First segments that name the training steps, or an evaluation of `glasshouse monitor`."""

MONITORS: Mapping[str, str] = MappingProxyType(
    {
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
    return share(segment, f"pass@{match[1]}", sentence=sentence, tabled=False)
