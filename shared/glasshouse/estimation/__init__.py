"""Statistics of monitorability: the seed is the unit of a claim, the problem that of a run.

    scored.py       a measure with its interval, its null and its ceiling
    verdict_rates.py  the same for rates of a monitor's verdicts, several at once
    resampling.py   intervals: over problems, or over seeds, problems and samples
    permutation.py  nulls: the same verdicts, dealt out anew
    seeds.py        two arms over paired seeds: effect, interval, exact test, Holm
    comparison.py   two monitors on the same rollouts
    control.py      nulls: the same rollouts, not intervened on
    matched.py      two arms at one step, or where both arms are equally accurate

Closed forms (Wilson, Newcombe, McNemar, Holm, Cochran–Armitage) are in glasshouse/statistics.py.
Every draw is keyed: the same rows and key give the same interval, bit for bit.
"""

from glasshouse.estimation.bootstrap import Interval, bootstrap, bootstrap_all, unanimous
from glasshouse.estimation.control_null import control_null
from glasshouse.estimation.estimates import (
    Scored,
    ScoredGMean2,
    scored_auroc,
    scored_gmean2,
    scored_mean,
    scored_reliance,
)
from glasshouse.estimation.matched import (
    Curve,
    at_accuracy,
    at_step,
    matched_accuracy,
    matched_step,
    shared_accuracy,
)
from glasshouse.estimation.monitor_comparison import Versus, versus
from glasshouse.estimation.paired_seeds import Paired, family, over_seeds, paired, sign_flip, slope
from glasshouse.estimation.permutation import Null, auroc_null, table_null, table_nulls
from glasshouse.estimation.rate_estimates import scored_rate, scored_rates
from glasshouse.estimation.weighted_statistics import (
    minus,
    of_auroc,
    of_difference,
    of_mean,
    of_table,
)

__all__ = [
    "Curve",
    "Interval",
    "Null",
    "Paired",
    "Scored",
    "ScoredGMean2",
    "Versus",
    "at_accuracy",
    "at_step",
    "auroc_null",
    "bootstrap",
    "bootstrap_all",
    "control_null",
    "family",
    "matched_accuracy",
    "matched_step",
    "minus",
    "of_auroc",
    "of_difference",
    "of_mean",
    "of_table",
    "over_seeds",
    "paired",
    "scored_auroc",
    "scored_gmean2",
    "scored_mean",
    "scored_rate",
    "scored_rates",
    "scored_reliance",
    "shared_accuracy",
    "sign_flip",
    "slope",
    "table_null",
    "table_nulls",
    "unanimous",
    "versus",
]
