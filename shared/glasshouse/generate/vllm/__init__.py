"""vLLM as a generator engine (`generate.engine: vllm`), in its own environment: docs/models.md.

*Not run on hardware*: on a GPU. vLLM's CPU build was run, with the pocket model 3 to 4 times slower than the torch
engine (docs/benchmarks.md). Only `keyed_sampler`, which runs inside vLLM, imports it at its top.
"""
