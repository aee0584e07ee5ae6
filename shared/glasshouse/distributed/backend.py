"""Where completions are generated and where the model is updated: the protocol, and the backend of one process.

The training loop submits chunks of requests and batches of samples; it does not know which process computes them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from glasshouse.config.schema import Config
from glasshouse.generate.engines import LocalGeneration
from glasshouse.learn.learner import Learner, LearnerState
from glasshouse.learn.microbatches import TrainingSample
from glasshouse.models.devices import resolve_device
from glasshouse.models.policy import Policy
from glasshouse.rollout.collector import Sampler


class EventSink(Protocol):
    """Receives what happens inside a backend: `event("fault", generator=1, text=…)`."""

    def __call__(self, kind: str, **details: Any) -> None: ...


class Backend(Sampler, Protocol):
    """Generators and a learner."""

    def update(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Update the model and send the new weights, with a new version, to every generator."""

    def timing(self) -> dict[str, Any]:
        """Seconds and bytes of the last weight sync, for the metrics."""

    def state(self) -> LearnerState:
        """Return the learner's state, and copy the current weights into the run's policy."""

    def restore(self, state: LearnerState) -> None:
        """Continue from a learner state and from the weights that the run's policy holds now."""

    def close(self) -> None:
        """Stop every process that the backend started."""


def make_backend(policy: Policy, config: Config, event: EventSink) -> Backend:
    """Return the backend of `config.backend`. torchmonarch is imported only if it is needed."""
    if config.backend == "local":
        return LocalBackend(policy, config)
    hosts = None
    if config.hosts.addresses:
        from glasshouse.distributed.hosts.host_pool import HostPool

        hosts = HostPool(config.hosts)  # before any other use of Monarch
    from glasshouse.distributed.monarch.backend import MonarchBackend

    try:
        return MonarchBackend(policy, config, event, hosts)
    except BaseException:
        if hosts:
            hosts.close()
        raise


class LocalBackend(LocalGeneration):
    """Generates and learns in this process."""

    def __init__(self, policy: Policy, config: Config) -> None:
        device, sampler = policy.device, policy
        if config.generate.device:
            size = policy.model.num_parameters()
            device = resolve_device(config.generate.device, size, key="generate.device")
        if device != policy.device:
            sampler = replace(policy, model=copy.deepcopy(policy.model).to(device))
        super().__init__(sampler, config.generate)
        self.learner = Learner.from_config(policy, config)

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
