"""Tasks: problems with gold answers, their prompts, splits and streams, and the answer parser.

base.py           `Task`, the base class, and `make_task`; organisms.py have a planted behaviour
steps.py          how solutions are written, and how the steps of a CoT are checked
streams.py        train, validation or test by a hash of the problem's key; fresh or fixed problems
problem_files.py  problems on disk
answers.py        the answer parser, the same for training and evaluation
"""
