"""Learning: rollouts to an update.

`advantages` and `losses` are pure functions, one page each; `Learner` applies whichever algorithm
the configuration names, without knowing which it is.
"""

from glasshouse.learn.learner import Learner, LearnerState, Sample
from glasshouse.learn.losses import ALGORITHMS, Algorithm, algorithm

__all__ = ["ALGORITHMS", "Algorithm", "Learner", "LearnerState", "Sample", "algorithm"]
