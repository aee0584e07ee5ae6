"""The Monarch backend: generators and learner as actors, each in its own process.

Needs the extra `monarch` (torchmonarch); no other package of Glasshouse does.
"""

from glasshouse.backends.monarch import runtime

runtime.import_monarch()  # sets Monarch's environment variables before its first import

from glasshouse.backends.monarch.backend import MonarchBackend  # noqa: E402
from glasshouse.backends.monarch.runtime import Host  # noqa: E402

__all__ = ["Host", "MonarchBackend"]
