"""Data: which problems a run draws.

splits.py         assigns every problem to train, validation or test by a hash of its key
streams.py        `FreshProblems` and `FixedProblems`, with resumable state
permutation.py    draws each index of a range once, in constant memory
seen_problems.py  the problems drawn so far, on disk
files.py          reads and writes problem files
create_file.py    `glasshouse data generate`: a problem file with its provenance
contamination.py  finds held-out problems that were trained on
"""

from glasshouse.data.splits import Split, assign_split
from glasshouse.data.streams import (
    FixedProblems,
    FreshProblems,
    ProblemsExhausted,
    ProblemStream,
)

__all__ = [
    "FixedProblems",
    "FreshProblems",
    "ProblemStream",
    "ProblemsExhausted",
    "Split",
    "assign_split",
]
