"""The answer parser, used by training and evaluation alike.

extraction.py  `extract_answer` (lenient or strict), `split_completion` (CoT and answer)
sections.py    where think blocks, answer tags, boxes and phrases are in a completion
parsing.py     parses one answer of a given kind at such a location
numbers.py     which characters form a number
wording.py     which words and signs around a number change its value
equality.py    whether an extracted answer equals the gold answer
"""

from glasshouse.answers.equality import answers_match
from glasshouse.answers.extraction import Sections, extract_answer, split_completion

__all__ = ["Sections", "answers_match", "extract_answer", "split_completion"]
