"""How long would the matrix products of a step take alone? The yardstick for the speed of large models.

    python bench/gemm.py --model smollm2 --threads 2
    python bench/gemm.py --rows 4 16 64 128 1024       # torch.mm and oneDNN by number of rows

Each product of the model is timed by itself in float32 with the shapes of the real computation (`rows` tokens at a
time): the median of several calls, and the fastest. There are two yardsticks: `torch.mm`, and the faster of `torch.mm`
and oneDNN for each product (`glasshouse.models.matmul`; gradients of weights are left to `torch.mm`).

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
from functools import partial

import torch
from transformers import AutoConfig

from glasshouse.models.matmul import linear, pack_weight
from glasshouse.models.policy import locate_model

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
    grad = torch.randn(rows, outputs)
    out, grad_x, grad_weight = torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)
    for_onednn = weight if training else pack_weight(weight)
    products = [
        (lambda: torch.mm(x, weight.t(), out=out), lambda: linear(x, for_onednn, onednn=True)),
    ]
    if training:
        products.append(
            (
                lambda: torch.mm(grad, weight, out=grad_x),
                lambda: linear(grad, weight.t(), onednn=True),
            )
        )
    durations = []
    for by_torch, by_onednn in products:
        mm, onednn = time_calls(by_torch, repeats), time_calls(by_onednn, repeats)
        durations.append({"mm": mm, "best": min(mm, onednn, key=statistics.median)})
    if training:
        mm = time_calls(lambda: torch.mm(grad.t(), x, out=grad_weight), repeats)
        durations.append({"mm": mm, "best": mm})
    return durations


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


def print_by_rows(model: str, numbers_of_rows: list[int]) -> None:
    """GFLOP/s of forward products of the first layer of an MLP and of the output layer, by how they are computed."""
    block, head, _ = list_products(model)
    print("GFLOP/s, median of 15 calls")
    for title, (inputs, outputs) in (("MLP", block[2]), ("output layer", head)):
        print(
            f"{title}, {inputs} -> {outputs}: rows, torch.mm, oneDNN, oneDNN with a packed weight"
        )
        weight = torch.randn(outputs, inputs)
        packed = pack_weight(weight)
        for rows in numbers_of_rows:
            x = torch.randn(rows, inputs)
            products: list[Callable[[], object]] = [
                partial(torch.mm, x, weight.t()),
                partial(linear, x, weight, onednn=True),
                partial(linear, x, packed, onednn=True),
            ]
            speeds = (
                2e-9 * rows * inputs * outputs / statistics.median(time_calls(product, 15))
                for product in products
            )
            print(f"{rows:6}", *(f"{speed:7.0f}" for speed in speeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print seconds per token as JSON")
    parser.add_argument(
        "--rows", type=int, nargs="+", metavar="N", help="instead: two products, by number of rows"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.rows:
        with torch.inference_mode():
            print_by_rows(options.model, options.rows)
        return 0
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
