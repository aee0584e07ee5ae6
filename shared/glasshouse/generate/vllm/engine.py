"""`generate.engine: vllm`: completions by vLLM, in this process.

    requests ──► one vLLM request per sample ──► prefix cache (a group's prompt once) ──► continuous batching
                                                                                             │
    completions ◄── tokens, log-probabilities, finish reasons ◄── KeyedSampler (inside vLLM) ◄──┘

vLLM gets tokens and returns tokens; nothing is tokenised twice. Its weights come from the policy through its
weight transfer interface, the first ones too: vLLM reads only the model's config from disk.

The noise of a sample depends on its key only, as in `TorchGenerator`. vLLM's matrix products round
differently, so that tokens may differ where two are nearly equally likely.
"""

from __future__ import annotations

import math
import socket
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, RunError
from glasshouse.generate.engines import engine, max_length
from glasshouse.generate.vllm.installed import check_model, import_vllm
from glasshouse.models.devices import is_large
from glasshouse.models.policy import Policy, locate_model
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

CPU_BLOCK_SIZE = 32
"""Tokens per block of the KV cache on a CPU. Only whole blocks are shared, so that short prompts need small
ones; vLLM's CPU kernels need a multiple of 32."""
MAX_BATCH = 256
"""Completions that vLLM decodes at the same time; others wait."""


@engine("vllm")
class VllmGenerator:
    """Implements `Generator` with vLLM.

    Example: `VllmGenerator(policy, config.generate).generate(requests, SamplingParams(max_tokens=32))`
    """

    def __init__(self, policy: Policy, config: GenerateConfig) -> None:
        check_model(policy, config)
        self.policy, self.config = policy, config
        self.version = 0
        self.checksum = ""
        """Of the weights that every worker of vLLM loaded last; empty with `ipc` and `nccl`."""
        self.cached_prompt_tokens = 0
        """Prompt tokens of the last call that the prefix cache served."""
        self._vllm = import_vllm(in_process=self._runs_in_process)
        self._llm = self._start()
        self._stop = weakref.finalize(self, self._llm.llm_engine.engine_core.shutdown)
        self._trainer = self._connect()
        self._has_weights = False

    @property
    def _runs_in_process(self) -> bool:
        """Does vLLM run its model in this process? CUDA-IPC and NCCL need another one."""
        settings = self.config.vllm
        return settings.tensor_parallel_size == 1 and settings.weight_transfer == "shared_memory"

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sends the weights to vLLM; raises unless every worker has exactly these."""
        self.policy.load_weights(weights)
        self._send_weights(version)

    def free(self) -> None:
        """Frees vLLM's GPU memory with `generate.vllm.sleep`; `load_weights` fills it again."""
        if self.config.vllm.sleep:
            self._llm.sleep(level=2)  # forgets the weights too: new ones follow
            self._has_weights = False

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> list[list[Completion]]:
        """Returns one list of completions per request, in order."""
        from glasshouse.generate.vllm.keyed_sampler import encode_arguments

        if not self._has_weights:
            self._send_weights(self.version)
        by_block = is_large(self.policy.model)
        prompts: list[dict[str, Any]] = []
        params = []
        limit = min(self.policy.context_length, self._llm.llm_engine.model_config.max_model_len)
        for request in requests:
            max_length(request, sampling, limit, cache="vLLM's KV cache (generate.kv_cache_mb)")
            for key in request.noise_keys:
                prompts.append({"prompt_token_ids": list(request.prompt)})
                params.append(
                    self._vllm.SamplingParams(
                        temperature=0,  # KeyedSampler leaves one token
                        max_tokens=sampling.max_tokens,
                        logprobs=0,  # of the sampled token only
                        flat_logprobs=True,
                        ignore_eos=True,  # the policy's end tokens are complete
                        stop_token_ids=sorted(self.policy.end_tokens),
                        stop=list(sampling.stop),
                        detokenize=bool(sampling.stop),
                        extra_args=encode_arguments(key, sampling, by_block=by_block),
                    )
                )
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        self.cached_prompt_tokens = sum(output.num_cached_tokens or 0 for output in outputs)
        completions = iter([self._read_output(output.outputs[0], sampling) for output in outputs])
        return [[next(completions) for _ in request.noise_keys] for request in requests]

    def close(self) -> None:
        """Stops vLLM and the processes that it started; the end of this process does so too."""
        self._trainer.shutdown()
        self._stop()

    def _start(self) -> Any:
        from glasshouse.generate.vllm import keyed_sampler, weight_transfer

        on_cpu = self.policy.device.type == "cpu"
        settings = self.config.vllm
        source = str(locate_model(self.policy.name) or self.policy.name)
        set_num_threads = torch.set_num_threads
        try:
            return self._vllm.LLM(
                model=source,
                load_format="dummy",  # the weights follow through the weight transfer
                dtype=str(self.policy.dtype).removeprefix("torch."),
                max_model_len=-1,  # as many tokens as the KV cache holds, at most the model's context
                kv_cache_memory_bytes=self.config.kv_cache_mb << 20,
                max_num_seqs=MAX_BATCH,
                enable_prefix_caching=True,
                enforce_eager=on_cpu or settings.enforce_eager,
                tensor_parallel_size=settings.tensor_parallel_size,
                generation_config="vllm",  # no sampling defaults of the model
                logprobs_mode="processed_logits",
                logits_processors=[keyed_sampler.CLASS_PATH],
                async_scheduling=False,  # the sampler needs the tokens so far
                weight_transfer_config={"backend": settings.weight_transfer},
                worker_extension_cls=f"{weight_transfer.__name__}.WorkerExtension",
                enable_sleep_mode=settings.sleep,
                **({"block_size": CPU_BLOCK_SIZE} if on_cpu else {}),
            )
        except Exception as error:  # vLLM refuses models with errors of many types
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            raise ConfigError(
                f'vLLM could not start with the model "{self.policy.name}": {reason} '
                "Set generate.engine=torch, or see docs/models.md."
            ) from error
        finally:
            torch.set_num_threads = (
                set_num_threads  # vLLM replaces it by a function that only warns
            )

    def _connect(self) -> Any:
        """The learner's end of the weight transfer."""
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        from glasshouse.generate.vllm.weight_transfer import (
            LocalClient,
            PolicySource,
            SharedMemoryTrainerInit,
        )

        settings = self.config.vllm
        init: Any
        if settings.weight_transfer == "nccl":
            from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

            init = NCCLTrainerInitInfo(
                master_address="127.0.0.1", master_port=choose_port(settings.port),
                world_size=1 + settings.tensor_parallel_size, rank=0,
            )  # fmt: skip
        elif settings.weight_transfer == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

            init = IPCTrainerInitInfo(rank=0)
        else:
            init = SharedMemoryTrainerInit(rank=0)
        self._source = PolicySource(self.policy.model, self.policy.dtype)
        return WeightTransferTrainerFactory.trainer_init(
            init, client=LocalClient(self._llm), source=self._source
        )

    def _send_weights(self, version: int) -> None:
        sleep = self.config.vllm.sleep and not self._has_weights
        if sleep:
            self._llm.wake_up(tags=["weights"])
        self._source.version = version
        try:
            self._trainer.send_weights()
        except Exception as error:
            raise RunError(
                f"Version {version} of the weights did not reach vLLM: {' '.join(str(error).split())[:400]}"
            ) from error
        if sleep:
            self._llm.wake_up(tags=["kv_cache"])
        self._llm.reset_prefix_cache()  # it holds keys and values of the old weights
        if self.config.vllm.weight_transfer == "shared_memory":
            self._compare_checksums(version)
        self.version, self._has_weights = version, True

    def _compare_checksums(self, version: int) -> None:
        loaded = set(self._llm.collective_rpc("read_checksum"))
        if loaded != {self._trainer.checksum}:
            raise RunError(f"The workers of vLLM hold other weights than version {version}.")
        self.checksum = self._trainer.checksum

    def _read_output(self, output: Any, sampling: SamplingParams) -> Completion:
        tokens, logprobs = tuple(output.token_ids), tuple(output.logprobs.logprobs)
        vocabulary = self.policy.model.get_input_embeddings().num_embeddings
        problems = {
            f"{len(tokens)} tokens": not 1 <= len(tokens) <= sampling.max_tokens,
            f"{len(logprobs)} log-probabilities for {len(tokens)} tokens": len(logprobs)
            != len(tokens),
            f"a token outside the vocabulary of {vocabulary}": not all(
                0 <= token < vocabulary for token in tokens
            ),
            "a log-probability that is not finite": not all(map(math.isfinite, logprobs)),
            f"the finish reason {output.finish_reason!r}": output.finish_reason
            not in ("stop", "length"),
        }
        if any(problems.values()):
            wrong = ", ".join(problem for problem, found in problems.items() if found)
            raise RunError(
                f"vLLM returned an invalid completion: {wrong}. Run `make proofs ONLY=vllm`, or set "
                "generate.engine=torch."
            )
        stop = FinishReason.LENGTH
        if output.finish_reason == "stop":
            stop = FinishReason.STOP if isinstance(output.stop_reason, str) else FinishReason.END
        return Completion(
            tokens=tokens,
            logprobs=logprobs,
            length=len(tokens),
            finish_reason=stop,
            policy_version=self.version,
        )


def choose_port(port: int) -> int:
    """The port of `generate.vllm.port`, or a free one; raises if it is in use."""
    with socket.socket() as server:
        try:
            server.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"generate.vllm.port: port {port} cannot be used ({error.strerror}). Set another one, or 0 for "
                "a free one."
            ) from None
        number: int = server.getsockname()[1]
        return number
