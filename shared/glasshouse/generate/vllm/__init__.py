"""vLLM as a generator engine (`generate.engine: vllm`), in its own environment: docs/models.md.

    installed        is vLLM here, in a version that was tested; what it needs of a model
    engine           `VllmGenerator`: requests to completions
    keyed_sampler    runs inside vLLM: samples with our keyed noise, so that seeds mean the same in every engine
    weight_source    the policy's weights, with adapters merged, under the names of a checkpoint
    weight_transfer  weights through shared memory, registered in vLLM's weight transfer interface

*Not run on hardware*: on a GPU. vLLM's CPU build was run, with the pocket model 3 to 4 times slower than the torch
engine (docs/benchmarks.md).

Only the modules that run inside vLLM (`keyed_sampler`, `weight_transfer`) import it at their top.
"""
