"""How long would the matrix products of a step take alone? The yardstick for the speed of large models.

    python bench/gemm.py --model smollm2 --threads 2

Each product of the model is timed by itself in float32 with the shapes of the real computation (`rows` tokens at a
time): the median of several calls, and the fastest. There are two yardsticks: `torch.mm`, and the faster of `torch.mm`
and oneDNN for each product (`glasshouse.models.linear`; gradients of weights are left to `torch.mm`).

The share of GEMM speed that a phase reaches is the time of the products it needs, at these speeds, divided by its
measured time. Needed is each token once: the start that all prompts share once per step, the rest of each prompt once,
each token of a completion once; logits for tokens of completions only. Padding, attention, normalisation, sampling, the
optimizer and everything else count as loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from transformers import AutoConfig

from glasshouse.models.folders import locate_model
from glasshouse.models.linear import linear, pack_weight

LEARNING_ROWS, GENERATION_ROWS = 1024, 128
"""Tokens per product: of a microbatch (`learn.microbatch_tokens`), and of a decoding step of 16 × 8."""


YARDSTICKS = {"mm": "torch.mm", "best": "the faster of torch.mm and oneDNN"}

Summary = Callable[[list[float]], float]
"""Makes one duration of several: their median, or the fastest."""


@dataclass(frozen=True, slots=True)
class ProductSeconds:
    """Seconds per token of all matrix products of the blocks and of the output layer."""

    blocks: float
    head: float


def list_products(model: str) -> tuple[list[tuple[int, int]], tuple[int, int], int]:
    """(inputs, outputs) of the products of a block, of the output layer, and the number of blocks."""
    config = AutoConfig.from_pretrained(str(locate_model(model) or model))
    width, heads = config.hidden_size, config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or width // heads
    qkv = (heads + 2 * config.num_key_value_heads) * head_width
    mlp = config.intermediate_size
    block = [(width, qkv), (heads * head_width, width), (width, 2 * mlp), (mlp, width)]
    return block, (width, config.vocab_size), config.num_hidden_layers


def time_calls(function: Callable[[], object], repeats: int) -> list[float]:
    function()  # warms up
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        durations.append(time.perf_counter() - started)
    return durations


def time_product(
    rows: int, inputs: int, outputs: int, *, training: bool, repeats: int
) -> list[dict[str, list[float]]]:
    """Durations of a product, by yardstick; with `training`, and of those for the gradients of its input and
    weight. A weight that does not change, as in generation, is packed for oneDNN."""
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    packed = weight if training else pack_weight(weight)
    products = [time_both(x, weight.t(), lambda: linear(x, packed), repeats)]
    if training:
        grad = torch.randn(rows, outputs)
        products.append(time_both(grad, weight, lambda: linear(grad, weight.t()), repeats))
        products.append(time_both(grad.t(), x, None, repeats))
    return products


def time_both(
    a: torch.Tensor, b: torch.Tensor, by_onednn: Callable[[], object] | None, repeats: int
) -> dict[str, list[float]]:
    out = torch.empty(a.shape[0], b.shape[1])
    mm = time_calls(lambda: torch.mm(a, b, out=out), repeats)
    others = [time_calls(by_onednn, repeats)] if by_onednn else []
    return {"mm": mm, "best": min([mm, *others], key=statistics.median)}


def measure_products(
    model: str, rows: int, *, training: bool, repeats: int = 15
) -> dict[str, dict[str, ProductSeconds]]:
    """Seconds per token with torch's current number of threads, by yardstick: `median` and `fastest`."""
    block, head, blocks = list_products(model)
    in_block = [
        durations
        for shape in block
        for durations in time_product(rows, *shape, training=training, repeats=repeats)
    ]
    in_head = time_product(rows, *head, training=training, repeats=repeats)

    def summarize(yardstick: str, summary: Summary) -> ProductSeconds:
        return ProductSeconds(
            blocks * sum(summary(durations[yardstick]) for durations in in_block) / rows,
            sum(summary(durations[yardstick]) for durations in in_head) / rows,
        )

    return {
        yardstick: {
            "median": summarize(yardstick, statistics.median),
            "fastest": summarize(yardstick, min),
        }
        for yardstick in YARDSTICKS
    }


def describe_speed(model: str, seconds: ProductSeconds, *, training: bool) -> str:
    block, head, blocks = list_products(model)
    products = 6e-9 if training else 2e-9
    in_blocks, in_head = blocks * sum(i * o for i, o in block), head[0] * head[1]
    return (
        f"blocks {products * in_blocks / seconds.blocks:.0f} GFLOP/s, "
        f"output layer {products * in_head / seconds.head:.0f} GFLOP/s"
    )


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print seconds per token as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = {}
    for name, rows, training in (
        ("learning", LEARNING_ROWS, True),
        ("generation", GENERATION_ROWS, False),
    ):
        seconds = measure_products(options.model, rows, training=training)
        report[name] = {
            yardstick: {summary: asdict(value) for summary, value in summaries.items()}
            for yardstick, summaries in seconds.items()
        }
        if not options.json:
            print(f"{name}, {rows} tokens at a time, {options.threads} threads:")
            for yardstick, summaries in seconds.items():
                for summary, value in summaries.items():
                    speed = describe_speed(options.model, value, training=training)
                    print(f"  {YARDSTICKS[yardstick]}, {summary} of each product's calls: {speed}")
    if options.json:
        print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
