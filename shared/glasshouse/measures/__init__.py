"""Measures of monitorability: pure functions of labels, flags, scores and answers.

    registry.py           id, label, unit, bounds, direction and definition of every measure
    rates.py              reliance, disclosure, undetected use, TPR, TNR
    gmean.py              g-mean², with attributable share, ceiling and informedness
    detection.py          AUROC, threshold at a false positive rate, labels needed
    ablation.py           necessity uplift, early answering, TRACE, follow rates, filler
    steps.py              step validity and coverage
    companion_metrics.py  accuracy, CoT length, parse failures, parser rules: reported with every point

Each returns a `MeasureResult`: a value with its denominator, or the reason why it is undefined.
result.py holds what they share, contingency.py the table that all rates are computed from.
"""

from glasshouse.measures.ablation import (
    FollowShares,
    aoc_ceiling,
    early_answering_aoc,
    filler_agreement,
    follow_shares,
    necessity_uplift,
    trace,
    transplant_follow,
)
from glasshouse.measures.companion_metrics import compute_companions
from glasshouse.measures.contingency import FAILED
from glasshouse.measures.detection import auroc, labels_needed, threshold_at_fpr
from glasshouse.measures.gmean import GMean2, gmean2, gmean2_plain, uninformative_ceiling
from glasshouse.measures.rates import (
    disclosure,
    rate,
    reliance,
    true_negative_rate,
    undetected_use,
)
from glasshouse.measures.registry import MEASURES, MeasureSpec, lookup
from glasshouse.measures.result import MeasureResult
from glasshouse.measures.steps import step_coverage, step_validity

__all__ = [
    "FAILED",
    "MEASURES",
    "FollowShares",
    "GMean2",
    "MeasureResult",
    "MeasureSpec",
    "aoc_ceiling",
    "auroc",
    "compute_companions",
    "disclosure",
    "early_answering_aoc",
    "filler_agreement",
    "follow_shares",
    "gmean2",
    "gmean2_plain",
    "labels_needed",
    "lookup",
    "necessity_uplift",
    "rate",
    "reliance",
    "step_coverage",
    "step_validity",
    "threshold_at_fpr",
    "trace",
    "transplant_follow",
    "true_negative_rate",
    "undetected_use",
    "uninformative_ceiling",
]
