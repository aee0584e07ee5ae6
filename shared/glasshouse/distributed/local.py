"""The local backend: generation and learning in this process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glasshouse.config.schema import Config
from glasshouse.generate.local import LocalGeneration
from glasshouse.learn.learner import Learner
from glasshouse.learn.learner_state import LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.devices import resolve_device
from glasshouse.models.policy import Policy


class LocalBackend(LocalGeneration):
    """Generates and learns in this process."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(self._copy_to_generator(policy, config), config.generate)
        self.learner = Learner.from_config(policy, config)

    @staticmethod
    def _copy_to_generator(policy: Policy, config: Config) -> Policy:
        """The policy itself, or a copy on `generate.device` if that is another device."""
        if not config.generate.device:
            return policy
        size = policy.model.num_parameters()
        device = resolve_device(config.generate.device, size, key="generate.device")
        if device == policy.device:
            return policy
        return replace(policy, model=copy.deepcopy(policy.model).to(device))

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        self.generator.free()  # its fused weights are outdated after the update; frees their memory
        metrics = self.learner.update(samples)
        self._sync_weights()
        return metrics

    def timing(self) -> dict[str, Any]:
        return {}

    def state(self) -> LearnerState:
        return self.learner.state()

    def restore(self, state: LearnerState) -> None:
        self.learner.restore(state)
        self._sync_weights()

    def close(self) -> None:
        """There is no process to stop."""

    def _sync_weights(self) -> None:
        self.generator.load_weights(self.learner.policy.weights(), self.learner.version)
