"""The Monarch backend: generators and learner as actors, each in its own process. Needs the extra `monarch`."""

from glasshouse.distributed.monarch_settings import ONE_HOST, configure_monarch
from glasshouse.errors import ConfigError, install_command

configure_monarch(ONE_HOST)  # keeps what a run on several hosts has set
try:
    import monarch.actor  # noqa: F401
except ImportError:
    raise ConfigError(
        "backend is monarch, but torchmonarch is not installed. Set backend=local, or install it: "
        f"{install_command('monarch')}"
    ) from None
