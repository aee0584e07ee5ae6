"""Before training: does the reward read the chain of thought (`audit`), and will RL hide, remove or show a behaviour
(`predict`)? Nothing here trains; torch is imported only to sample from a model."""
