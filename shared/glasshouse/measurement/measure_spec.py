"""What is known about a measure before it is measured: the fields of an entry of the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from glasshouse.measurement.columns import Columns, Scores
    from glasshouse.measurement.estimates import Values

Direction = Literal["higher", "lower", "none"]
Tabled = Literal["always", "named", "never"]
Need = Literal["training", "labels", "arms"]
"""`training`: the value is that of a training step. `labels`: the behaviour of every rollout is known.
`arms`: there are rollouts of the planted and of the control arm."""
Report = Literal["training", "interventions", "monitors", "organism", "fitted", "file"]
"""What reports measures of given rollouts: evaluations in training; `glasshouse monitor` for rollouts with
interventions, for the monitors of an ordinary task, of an organism, and for fitted monitors; and
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
    lower: float | None = None
    upper: float | None = None
    """Both bounds, or neither. They give the ceiling of an effect and the limits of a figure."""
    direction: Direction = "none"
    """Which way the measure moves as the model gets more monitorable."""
    headline: int = 0
    """Its place among the measures that are stated first (list of runs, summary); 0: not among them."""
    companion: int = 0
    """Its place among the measures that a study prints with every comparison; 0: not among them."""
    detail: bool = False
    """Left out of the table in the terminal; monitor.json and the report have it."""
    tabled: Tabled = "always"
    """Whether a study's table has it: only if the study names it, for measures that are younger than
    published tables."""
    needs: frozenset[Need] = frozenset()
    values: Callable[[Columns], Values] | None = None
    """Its values, from the columns of rollouts."""
    monitor_values: Callable[[Columns, Scores], Values] | None = None
    """The same for a measure of a monitor. A measure with neither comes from training steps, from
    `evaluate.py`, or needs the model's weights."""
    reports: tuple[Report, ...] = ()
    """What computes these values."""
    stream: str
    """Keys the measure's random resampling streams: must never change, or its p-values do."""

    @property
    def label_with_unit(self) -> str:
        """Example: "CoT length, tokens"."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)
