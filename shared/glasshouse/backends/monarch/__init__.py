"""The Monarch placement: generators and a learner as actors in processes of their own.

Needs the extra `monarch` (torchmonarch); nothing else of Glasshouse does.
"""

from glasshouse.backends.monarch import runtime

runtime.load()  # its settings must stand before Monarch is first imported

from glasshouse.backends.monarch.backend import Monarch  # noqa: E402
from glasshouse.backends.monarch.runtime import Place  # noqa: E402

__all__ = ["Monarch", "Place"]
