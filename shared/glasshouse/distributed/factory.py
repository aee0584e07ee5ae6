"""Create the backend that a configuration asks for."""

from __future__ import annotations

from glasshouse.config.schema import Config
from glasshouse.distributed.base import Backend, EventSink
from glasshouse.distributed.local import LocalBackend
from glasshouse.models.policy import Policy


def make_backend(policy: Policy, config: Config, event: EventSink) -> Backend:
    """Return the backend of `config.backend` and `config.hosts`. torchmonarch is an optional
    dependency and is imported only when it is needed."""
    if config.backend == "local":
        return LocalBackend(policy, config)
    if config.learn.sharding == "fsdp":
        from glasshouse.learn.sharded import check_sharded_learner  # imports FSDP

        check_sharded_learner(config)
    if not config.hosts.addresses:
        from glasshouse.distributed.monarch.backend import MonarchBackend

        return MonarchBackend(policy, config, event)
    from glasshouse.distributed.monarch_settings import configure_monarch

    configure_monarch(several_hosts=True)  # must happen before torchmonarch is imported
    from glasshouse.distributed.hosts.multi_host import MultiHostBackend

    return MultiHostBackend(policy, config, event)
