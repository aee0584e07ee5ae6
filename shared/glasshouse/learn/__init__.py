"""Learning: from rollouts to a policy update.

advantages.py          rewards of a group to advantages: pure functions on one page
losses.py              every algorithm's loss: pure functions on one page, and the table `ALGORITHMS`
learner.py             `Learner` applies the configured algorithm without knowing which it is
learner_state.py       what a checkpoint saves of a learner
microbatches.py        which samples are computed together
completion_tensors.py  values per token as tensors of a microbatch
schedule.py            the learning rate over the steps of a run
sharded.py             `ShardedLearner`: the same over several processes, each with a part of the weights
"""

from glasshouse.learn.learner import Learner
from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.losses import ALGORITHMS, Algorithm, get_algorithm
from glasshouse.learn.microbatches import TrainingSample

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Learner",
    "LearnerState",
    "TrainingSample",
    "get_algorithm",
]
