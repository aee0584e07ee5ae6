"""Studies: arms that differ in one setting, paired seeds, one table, a verdict per question.

    study file ──► runs: arms × seeds ──► table ──► analysis ──► verdicts

`spec` defines the study file, `runner` trains its runs, `table` holds what they measured and
`analysis` answers the questions. `glasshouse.report` prints and draws the results.
"""

from glasshouse.study.spec import Question, Study
from glasshouse.study.table import Row, Table

__all__ = ["Question", "Row", "Study", "Table"]
