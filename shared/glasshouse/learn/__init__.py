"""Learning: samples to an update of the weights.

losses.py      rewards of a group to advantages, and every loss
learner.py     applies the configured algorithm without knowing which it is
"""
