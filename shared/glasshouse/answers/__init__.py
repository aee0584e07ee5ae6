"""The answer parser, used by training and evaluation alike.

extraction.py  `split` (CoT and answer), `extract` (lenient or strict)
sections.py    think blocks, answer tags, boxes and phrases in a completion
parsing.py     one answer of a given kind out of a stretch of text
numbers.py     which characters form a number
equality.py    when an extracted answer equals the reference answer
"""

from glasshouse.answers.extraction import Sections, equal, extract, split

__all__ = ["Sections", "equal", "extract", "split"]
