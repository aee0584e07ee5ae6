"""Before a run: how much memory it needs and for what, how long a step takes, what it costs, which layout fits."""
