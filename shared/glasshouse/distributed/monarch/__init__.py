"""The Monarch backend: generators and learner as actors, each in its own process.

Needs the extra `monarch` (torchmonarch); no other package of Glasshouse does.
"""

from glasshouse.distributed.monarch import runtime

runtime.import_monarch()  # sets Monarch's environment variables before its first import
