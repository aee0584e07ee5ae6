"""Tasks: problems with gold answers, their prompts, splits and streams, and the answer parser.

catalogue.py  the tasks by name; `make_task`
base.py       `Task`, the base class; one file per task; organisms/ have a planted behaviour
answers/      the answer parser, the same for training and evaluation
splits.py     train, validation or test by a hash of the problem's key; streams.py: fresh or fixed problems
"""
