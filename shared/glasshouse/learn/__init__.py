"""Learning: samples to an update of the weights.

advantages.py  rewards of a group to advantages
losses.py      every algorithm's loss on one page
learner.py     applies the configured algorithm without knowing which it is
"""
