"""The share of the speed of its own matrix products that the kernel for small models reaches.

GEMM speed is that of the kernel's matrix product alone (`kernel_gemm.c`), at the shapes of the model, warm, on one
core. Needed are the products of each token once: those of the layers, of the output layer for predicted tokens, and
attention to the keys that a token sees. Learning needs three times those of its forward pass. Padding, normalisation,
softmax, sampling, the loss, the optimizer and Python count as loss.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glasshouse.kernel.build import FLAGS, SOURCE, VARIANTS, find_compiler, find_variant
from glasshouse.kernel.small_llama import count_common_tokens
from glasshouse.models.policy import load_empty_model

Rows = Sequence[Mapping[str, Any]]
"""The rollouts of a step, as the log has them."""


def measure_gemm(model: str) -> dict[str, float]:
    """GFLOP/s of one core, by phase."""
    config = load_empty_model(model).config
    heads = config.num_attention_heads * config.head_dim
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    sizes = [config.hidden_size, qkv, heads, config.intermediate_size, config.vocab_size]
    source, flags = Path(__file__).with_suffix(".c"), [f for f in FLAGS if f != "-shared"]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/gemm"
        command = [*find_compiler(), *flags, *VARIANTS[find_variant()], f"-I{SOURCE.parent}"]
        subprocess.run([*command, str(source), "-o", program], check=True)
        output = subprocess.check_output([program, *map(str, sizes)], text=True)
    return dict(zip(("generate", "learn"), map(float, output.split()), strict=True))


def count_operations(model: str, rows: Rows) -> dict[str, float]:
    """Floating-point operations that a step needs, by phase."""
    config = load_empty_model(model).config
    heads = config.num_attention_heads * config.head_dim
    width, layers = config.hidden_size, config.num_hidden_layers
    qkv = heads + 2 * config.num_key_value_heads * config.head_dim
    block = width * (qkv + 3 * config.intermediate_size) + heads * width
    head = 2 * width * config.vocab_size

    def forward(positions: Iterable[int]) -> float:
        return float(sum(2 * layers * (block + 2 * heads * (p + 1)) for p in positions))

    prompts = {tuple(row["prompt_tokens"]) for row in rows}
    common = count_common_tokens([*prompts])
    completions = sum(
        forward(range(len(r["prompt_tokens"]), len(r["prompt_tokens"]) + len(r["tokens"]) - 1))
        + head * len(r["tokens"])
        for r in rows
    )
    whole = sum(forward(range(len(p))) for p in prompts)
    rest = forward(range(common)) + sum(forward(range(common, len(p))) for p in prompts)
    return {"generate": completions + rest, "learn": 3 * (completions + whole)}
