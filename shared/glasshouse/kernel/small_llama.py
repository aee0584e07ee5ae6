"""Calls the kernel: the weights of a model as one array, and groups of a prompt with its samples.

A group is the unit of work. Its log-probabilities and gradients do not depend on the other groups of a call, nor on
the thread that computes it; gradients of groups are added one after another.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glasshouse.kernel.build import load_kernel

Group = tuple[Sequence[int], Sequence[Sequence[int]]]
"""A prompt and the tokens of its samples."""
SLOTS = 24
"""Completions that a thread decodes at a time; finished ones are replaced."""
PREFILL_ROWS = 4096
"""Prompt tokens whose activations a call keeps, at most: about 14 KB each in a pocket model."""

_INT, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("layers", "D", "H", "J", "d", "M", "V", "tied")),
        *((name, _INT) for name in ("has_bias", "has_qk_norm", "padding_token", "greedy")),
        *((name, _FLOAT) for name in ("eps", "temperature")),
        *((name, _POINTER) for name in ("cos", "sin", "weights", "panels")),
    ]


class _Unit(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("prompt", "samples", "targets")),
        *((name, _POINTER) for name in ("ends", "tokens", "positions", "target_tokens", "outputs")),
    ]


class _Requests(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("groups", "max_tokens", "slots")),
        *((name, _POINTER) for name in ("rows", "noise", "is_end")),
    ]


class _AdamW(ctypes.Structure):
    _fields_ = [
        (name, _FLOAT)
        for name in ("decay", "beta1", "beta2", "rest1", "rest2", "step_size", "correction", "eps")
    ]


class Unit:
    """Rows of a prompt, then those that continue it; and the tokens that they predict: those of samples, whose last
    tokens are no rows."""

    def __init__(
        self,
        prompt: Sequence[int],
        rows: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]] = (),
    ) -> None:
        first = len(prompt)
        lengths, counts = (np.array([len(x) for x in part], np.int64) for part in (rows, targets))
        self.ends = np.cumsum([first, *lengths])
        self.tokens = np.array([*prompt, *itertools.chain.from_iterable(rows)], np.int64)
        self.positions = np.arange(len(self.tokens))
        self.positions[first:] -= np.repeat(self.ends[:-1] - first, lengths)
        self.targets = np.array([*itertools.chain.from_iterable(targets)], np.int64)
        self.outputs = np.arange(len(self.targets)) - np.repeat(np.arange(len(counts)), counts)
        self.outputs[np.cumsum(counts) - counts] = 0  # by the last row of the prompt
        arrays = (self.ends, self.tokens, self.positions, self.targets, self.outputs)
        self.struct = _Unit(first, len(rows), len(self.targets), *map(at, arrays))


class Tape(NamedTuple):
    """What a backward pass needs; valid until the next forward pass of its model."""

    units: list[Unit]
    starts: list[int]
    """Where the part of each unit begins in the memory."""
    logprobs: list[np.ndarray]
    """Of each unit: those of all tokens of its samples, one after another."""
    temperature: float


class SmallLlama:
    """A model of transformers' Llama family in the kernel. The model keeps the weights: `load` reads them.

    Example: `tape = SmallLlama(library, model).logprobs([(prompt, [tokens])])`
    """

    def __init__(self, library: ctypes.CDLL, model: Any, threads: int = 1) -> None:
        self.library, self.threads = library, threads
        config, body = model.config, model.model
        first = body.layers[0].self_attn
        embed, head = body.embed_tokens.weight, model.lm_head.weight
        is_tied = embed.data_ptr() == head.data_ptr()
        self.parameters = _ordered_parameters(model, is_tied)
        padding = body.embed_tokens.padding_idx
        self.struct = _Model(
            layers=len(body.layers),
            D=config.hidden_size,
            H=config.num_attention_heads,
            J=config.num_key_value_heads,
            d=first.head_dim,
            M=config.intermediate_size,
            V=len(head),
            tied=is_tied,
            has_bias=first.q_proj.bias is not None,
            has_qk_norm=hasattr(first, "q_norm"),
            padding_token=-1 if padding is None else padding,
            eps=config.rms_norm_eps,
        )
        for name in ("parameter_count", "panel_count", "tape_size"):
            getattr(library, name).restype = _INT
        library.sum_squares.restype = ctypes.c_double
        self.count = library.parameter_count(ctypes.byref(self.struct))
        assert self.count == sum(p.numel() for p in self.parameters)
        self.weights = np.empty(self.count, np.float32)
        self.panels = np.zeros(library.panel_count(ctypes.byref(self.struct)), np.float32)
        self.struct.weights, self.struct.panels = at(self.weights), at(self.panels)
        self.memory = np.empty(0, np.float32)
        half = first.head_dim // 2
        theta = float(config.rope_parameters["rope_theta"])
        self.frequencies = np.array([theta ** (-i / half) for i in range(half)], np.float32)
        self.tables = np.empty((2, 0, half), np.float32)
        self.load()

    def load(self) -> None:
        """Reads the model's weights."""
        parameters = [p.detach().numpy().ravel() for p in self.parameters]
        np.concatenate(parameters, out=self.weights)
        self.library.pack_weights(ctypes.byref(self.struct), at(self.panels))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        counts: Sequence[int],
        noise: np.ndarray,
        *,
        temperature: float,
        end_tokens: Iterable[int],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens and log-probabilities, `(rows, max_tokens)`, and lengths of `counts[g]` completions per prompt, given
        `noise` of the same shape. What prompts begin with in common is computed once where that pays."""
        rows, limit = noise.shape
        tokens, lengths = np.zeros((rows, limit), np.int64), np.zeros(rows, np.int64)
        logprobs = np.zeros((rows, limit), np.float32)
        is_end = np.zeros(self.struct.V, np.uint8)
        is_end[list(end_tokens)] = 1
        model = self._prepare(temperature, max(map(len, prompts)) + limit)
        bounds = np.cumsum([0, *counts])

        def run(part: Part) -> None:
            own = np.cumsum([0, *(counts[g] for g in part.prompts)])
            places = np.concatenate([np.arange(bounds[g], bounds[g + 1]) for g in part.prompts])
            chosen = [prompts[g] for g in part.prompts]
            unit = Unit(chosen[0][: part.common], [p[part.common :] for p in chosen])
            numbers = np.ascontiguousarray(noise[places], np.float32)
            slots = min(SLOTS, len(places))
            requests = _Requests(len(chosen), limit, slots, at(own), at(numbers), at(is_end))
            results = tokens[places], logprobs[places], lengths[places]
            self.library.generate(
                model, ctypes.byref(unit.struct), ctypes.byref(requests), *map(at, results)
            )
            tokens[places], logprobs[places], lengths[places] = results

        list(self._map(run, divide_prompts(prompts, self.threads, limit)))
        return tokens, logprobs, lengths

    def logprobs(self, groups: Sequence[Group], temperature: float = 1.0) -> Tape:
        """Log-probabilities of all tokens of the samples."""
        units = [Unit(p, [s[:-1] for s in samples], samples) for p, samples in groups]
        longest = max(len(p) + max(map(len, samples)) for p, samples in groups)
        model = self._prepare(temperature, longest)
        sizes = [self.library.tape_size(model, ctypes.byref(u.struct)) for u in units]
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        if len(self.memory) < starts[-1]:
            self.memory = np.empty(starts[-1] * 5 // 4, np.float32)
        results = [np.empty(len(unit.targets), np.float32) for unit in units]

        def run(n: int) -> None:
            memory = at(self.memory[starts[n] :])
            self.library.logprobs(model, ctypes.byref(units[n].struct), memory, at(results[n]))

        list(self._map(run, range(len(units))))
        return Tape(units, starts, results, temperature)

    def gradients(self, tape: Tape, grads: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The gradients of all weights, group by group, from those of the log-probabilities. An array is valid until
        the next one is asked for."""
        model = self._prepare(tape.temperature, 0)

        def run(n: int) -> np.ndarray:
            result = np.empty(self.count, np.float32)
            grad = np.ascontiguousarray(grads[n], np.float32)
            memory = at(self.memory[tape.starts[n] :])
            unit = ctypes.byref(tape.units[n].struct)
            self.library.backward(model, unit, at(grad), memory, at(result))
            return result

        return self._map(run, range(len(tape.units)))

    def split(
        self, flat: Tensor | None, parameters: Iterable[torch.nn.Parameter]
    ) -> list[Tensor | None]:
        """The gradients of these parameters, from those of all weights."""
        if flat is None:
            return [None for _ in parameters]
        pieces = flat.split([p.numel() for p in self.parameters])
        found = {id(p): x.view(p.shape) for p, x in zip(self.parameters, pieces, strict=True)}
        return [found[id(p)] for p in parameters]

    def _prepare(self, temperature: float, positions: int) -> Any:
        """The model at this temperature, with rotations of at least so many positions, as an argument of the kernel."""
        if self.tables.shape[1] < positions:
            self.tables = np.empty((2, 2 * positions, len(self.frequencies)), np.float32)
            sizes = (_INT(size) for size in self.tables.shape[1:])
            self.library.rotary_tables(*sizes, at(self.frequencies), *map(at, self.tables))
        model = _Model.from_buffer_copy(self.struct)
        model.temperature, model.greedy = temperature or 1.0, temperature == 0
        model.cos, model.sin = map(at, self.tables)
        return ctypes.byref(model)

    def _map(self, run: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        return (
            map(run, parts)
            if self.threads == 1
            else _pool(self.threads, os.getpid()).map(run, parts)
        )


class Part(NamedTuple):
    """Prompts that a call decodes together."""

    prompts: list[int]
    common: int
    """Tokens with which all of them begin."""


def divide_prompts(
    prompts: Sequence[Sequence[int]], threads: int, max_tokens: int
) -> Iterator[Part]:
    """Divides prompts into parts, one per thread at least. Those that begin alike are in one part, if that saves more
    tokens than a part decodes: a part of its own decodes fewer rows at a time."""
    clusters: list[Part] = []
    order = sorted(range(len(prompts)), key=lambda g: tuple(prompts[g]))
    for g in order:
        own, last = len(prompts[g]) - 1, clusters[-1] if clusters else None
        if last is not None:
            alike = count_common_tokens([prompts[last.prompts[-1]], prompts[g]])
            common, n = min(last.common, alike), len(last.prompts)
            if (n - 1) * last.common - n * common <= max_tokens:
                last.prompts.append(g)
                clusters[-1] = Part(last.prompts, common)
                continue
        clusters.append(Part([g], own))
    total = sum(len(p) for p in prompts) - sum(c.common * (len(c.prompts) - 1) for c in clusters)
    most = max(1, min(PREFILL_ROWS, -(-total // threads)))
    for cluster in clusters:
        rows = np.cumsum([len(prompts[g]) - cluster.common for g in cluster.prompts])
        cuts = np.flatnonzero(np.diff((rows - 1) // most, prepend=-1)).tolist()
        for a, b in itertools.pairwise([*cuts, len(cluster.prompts)]):
            yield Part(cluster.prompts[a:b], cluster.common if b - a > 1 else 0)


def count_common_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens with which all prompts start, at most all but one of the shortest.

    Example: `count_common_tokens([(1, 2, 3), (1, 2, 4, 5)]) == 2`
    """
    if len(prompts) < 2:
        return 0
    columns = zip(*prompts, strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return min(common, min(map(len, prompts)) - 1)


def at(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "kernel")


class KernelAdamW(torch.optim.AdamW):
    """AdamW whose step has the same bits on every CPU."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.library = load_kernel().library

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert self.library is not None
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], group["lr"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"step": torch.tensor(0.0)}
                    state |= {
                        name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")
                    }
                state["step"] += 1
                count = int(state["step"])
                options = _AdamW(
                    1 - rate * group["weight_decay"], beta1, beta2, 1 - beta1, 1 - beta2,
                    rate / (1 - beta1**count), math.sqrt(1 - beta2**count), group["eps"],
                )  # fmt: skip
                grad = parameter.grad.contiguous()
                pointers = [
                    t.data_ptr() for t in (grad, parameter, state["exp_avg"], state["exp_avg_sq"])
                ]
                self.library.adamw(
                    _INT(parameter.numel()), ctypes.byref(options), *map(ctypes.c_void_p, pointers)
                )


def clip_gradients(
    library: ctypes.CDLL, parameters: Sequence[torch.nn.Parameter], limit: float
) -> float:
    """Scales the gradients down to this norm; returns their norm before."""
    squares = 0.0
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        values = gradient.contiguous()
        squares += library.sum_squares(_INT(values.numel()), ctypes.c_void_p(values.data_ptr()))
    norm = math.sqrt(squares)
    if norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / (norm + 1e-6))
    return norm


def _ordered_parameters(model: Any, is_tied: bool) -> list[torch.nn.Parameter]:
    """In the order of the kernel's array."""
    found: list[torch.nn.Parameter | None] = []
    for block in model.model.layers:
        a, m = block.self_attn, block.mlp
        projections = (a.q_proj, a.k_proj, a.v_proj)
        found += [block.input_layernorm.weight, *(p.weight for p in projections)]
        found += [p.bias for p in projections]
        found += [a.q_norm.weight, a.k_norm.weight] if hasattr(a, "q_norm") else []
        found += [a.o_proj.weight, block.post_attention_layernorm.weight]
        found += [m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight]
    found += [model.model.norm.weight, model.model.embed_tokens.weight]
    found += [] if is_tied else [model.lm_head.weight]
    return [p for p in found if p is not None]
