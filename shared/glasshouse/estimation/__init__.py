"""Estimates: a measure with its interval, null distribution and ceiling.

    estimates.py            AUROC, means, reliance and g-mean² with interval, null and ceiling
    rate_estimates.py       the same for rates of a monitor's flags, several at once
    bootstrap.py            intervals: over problems, or over seeds, problems and samples
    permutation.py          nulls: the same flags, permuted among rollouts
    control_null.py         nulls: the same rollouts without the intervention
    weighted_statistics.py  measures as functions of row weights, as resampling needs them
    paired_seeds.py         two arms over paired seeds: effect, interval, exact test, Holm
    random_bases.py         the same over bases, which are a random effect; base × arm interaction
    matched.py              a run's measure where its accuracy passes a level

The unit of a claim about RL is the seed, the unit within a run the problem. Closed forms (Wilson,
Newcombe, Holm) are in glasshouse/statistics.py. Every draw is keyed: the same rows and key give the
same interval, bit for bit.
"""

from glasshouse.estimation.bootstrap import (
    Interval,
    bootstrap,
    bootstrap_all,
    wilson_if_unanimous,
)
from glasshouse.estimation.control_null import control_null
from glasshouse.estimation.estimates import (
    Estimate,
    GMean2Estimate,
    estimate_auroc,
    estimate_gmean2,
    estimate_mean,
    estimate_reliance,
)
from glasshouse.estimation.matched import AccuracyCurve, shared_accuracy, value_at_accuracy
from glasshouse.estimation.paired_seeds import (
    PairedComparison,
    compare_differences,
    compare_paired,
    holm_correct,
    sign_flip_test,
)
from glasshouse.estimation.permutation import NullDistribution, auroc_null, table_nulls
from glasshouse.estimation.random_bases import (
    BaseInteraction,
    compare_over_bases,
    estimate_interaction,
)
from glasshouse.estimation.rate_estimates import estimate_rates
from glasshouse.estimation.weighted_statistics import (
    auroc_statistic,
    mean_statistic,
    table_statistic,
)

__all__ = [
    "AccuracyCurve",
    "BaseInteraction",
    "Estimate",
    "GMean2Estimate",
    "Interval",
    "NullDistribution",
    "PairedComparison",
    "auroc_null",
    "auroc_statistic",
    "bootstrap",
    "bootstrap_all",
    "compare_differences",
    "compare_over_bases",
    "compare_paired",
    "control_null",
    "estimate_auroc",
    "estimate_gmean2",
    "estimate_interaction",
    "estimate_mean",
    "estimate_rates",
    "estimate_reliance",
    "holm_correct",
    "mean_statistic",
    "shared_accuracy",
    "sign_flip_test",
    "table_nulls",
    "table_statistic",
    "value_at_accuracy",
    "wilson_if_unanimous",
]
