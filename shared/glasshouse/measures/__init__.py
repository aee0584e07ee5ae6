"""Measures of monitorability: pure functions of labels, scores and answers.

    rates.py      reliance, disclosure, undetected reliance, TPR, TNR
    gmean.py      g-mean², with q, its ceiling and its lift beside it
    detection.py  AUROC, TPR at a frozen threshold
    ablation.py   necessity uplift, early answering, TRACE, follow rates, filler
    steps.py      step validity and coverage
    companions.py accuracy, CoT length, parse failures, rule mix: beside every point

Each returns a `Measure`: a value with its denominator, or the reason why it is undefined. What
they share is in result.py, and tables.py holds the one contingency table they are read from.
"""

from glasshouse.measures.ablation import (
    Follow,
    aoc_ceiling,
    cot_necessary,
    early_answering_aoc,
    filler_agreement,
    follow,
    mistake_follow,
    necessity_uplift,
    trace,
    transplant_follow,
)
from glasshouse.measures.companion_metrics import beside
from glasshouse.measures.contingency import FAILED, resolved
from glasshouse.measures.detection import (
    auroc,
    flagged,
    labels_needed,
    threshold_at_fpr,
    tpr_at_fpr,
)
from glasshouse.measures.gmean import GMean2, gmean2, gmean2_plain, uninformative_ceiling
from glasshouse.measures.rates import (
    disclosure,
    failure_rate,
    rate,
    reliance,
    true_negative_rate,
    true_positive_rate,
    undetected_reliance,
)
from glasshouse.measures.result import Measure
from glasshouse.measures.steps import step_coverage, step_validity

__all__ = [
    "FAILED",
    "Follow",
    "GMean2",
    "Measure",
    "aoc_ceiling",
    "auroc",
    "beside",
    "cot_necessary",
    "disclosure",
    "early_answering_aoc",
    "failure_rate",
    "filler_agreement",
    "flagged",
    "follow",
    "gmean2",
    "gmean2_plain",
    "labels_needed",
    "mistake_follow",
    "necessity_uplift",
    "rate",
    "reliance",
    "resolved",
    "step_coverage",
    "step_validity",
    "threshold_at_fpr",
    "tpr_at_fpr",
    "trace",
    "transplant_follow",
    "true_negative_rate",
    "true_positive_rate",
    "undetected_reliance",
    "uninformative_ceiling",
]
