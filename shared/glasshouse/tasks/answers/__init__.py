"""The answer parser.

extraction.py  `extract_answer` (lenient or strict), `split_completion` (CoT and answer)
sections.py    where think blocks, answer tags, boxes and phrases are in a completion
parsing.py     parses one answer of a given kind at such a location
numbers.py     which characters form a number
wording.py     which words and signs around a number change its value
equality.py    whether an extracted answer equals the gold answer
"""
