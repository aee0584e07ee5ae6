"""Data: which problems a run meets.

`splits` puts every problem into train, validation or test for good; `streams` draws them, fresh
or from a fixed set, with `permutation` and `ledger` to see to it that none comes twice; `files`
reads and writes them; `generate` writes a file with its provenance; `audit` finds the problems
that were trained on after all.
"""

from glasshouse.data.splits import Split, split_of
from glasshouse.data.streams import Fixed, Fresh, Stream, UsedUp

__all__ = ["Fixed", "Fresh", "Split", "Stream", "UsedUp", "split_of"]
