"""Studies: a question, arms that differ in one thing, paired seeds, a table, a verdict.

    study file ──► runs: arms × seeds ──► table ──► analysis ──► verdicts, page

`spec` says what a study is, `runs` trains it, `table` holds what every run measured.
"""

from glasshouse.study.spec import Question, Study
from glasshouse.study.table import Row, Table

__all__ = ["Question", "Row", "Study", "Table"]
