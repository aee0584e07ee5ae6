"""Counts the memory of a computation by running it on the meta device, where tensors have no data.

    with trace_memory(vocabulary) as trace:      # sees every operation
        trace.add(model.parameters(), "weights")
        learner.update(samples)                  # the learner's own code
    trace.peak()                                 # bytes by part

Nothing is computed and nothing is allocated, so a model of any size can be traced on any machine, and what
is counted is what the code does, not a formula that has to follow it. A model of identical layers is traced
with two and with three of them: the memory at each point of the computation is linear in their number
(`extrapolate`).

Three things have no meaning without data and are replaced: a number that is read from a tensor is 1, every
element counts as nonzero, and attention is one operation that keeps its inputs, output and normaliser, as
the fused kernels of the CPU and of GPUs do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
import torch.fx.experimental._config as fx_config
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

PARTS = (
    "weights", "reference", "gradients", "optimizer", "weight_copies", "activations", "logits",
    "kv_cache",
)  # fmt: skip
"""What memory is used for; `weight_copies` are fused or rounded copies of the weights."""

Bytes = tuple[int, ...]
"""Bytes by part, in the order of `PARTS`."""
aten = torch.ops.aten


@contextmanager
def trace_memory(vocabulary: int, dtype: torch.dtype | None = None) -> Iterator[MemoryTrace]:
    """Traces what runs inside the context. `vocabulary` tells logits from other activations. `dtype`: what autocast
    would compute matrix products in."""
    nonzero = fx_config.patch(meta_nonzero_assume_all_nonzero=True)  # type: ignore[attr-defined]
    with nonzero, _replace_functions(dtype), MemoryTrace(vocabulary) as trace:
        yield trace


class MemoryTrace(TorchDispatchMode):
    """Keeps count of the storages of meta tensors that are alive."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.alive: dict[int, tuple[int, str, Any]] = {}  # by storage: bytes, part, weak reference
        self.current = dict.fromkeys(PARTS, 0)
        self.weight_shapes: set[torch.Size] = set()
        self.weight_like: set[int] = set()  # storages that were computed from weights alone
        self.points: dict[tuple[Any, ...], list[Bytes]] = {}
        self.backward_passes: dict[int, int] = {}

    def add(self, tensors: Iterable[Tensor], part: str) -> None:
        """Counts tensors that exist already, or moves them to this part."""
        for tensor in tensors:
            if not tensor.is_meta:
                continue
            key = tensor.untyped_storage()._cdata
            if key in self.alive:
                self._move(key, part)
            else:
                self._register(tensor, part)
            if part == "weights":
                self.weight_shapes.add(tensor.shape)
            if part in ("weights", "reference"):
                self.weight_like.add(key)

    def move(self, source: str, target: str) -> None:
        """Counts everything that is alive in one part as another part."""
        for key, (_, part, _) in list(self.alive.items()):
            if part == source:
                self._move(key, target)

    def clear_points(self) -> None:
        """Forgets the peak so far."""
        self.points.clear()
        self.backward_passes.clear()

    def peak(self) -> Bytes:
        """Bytes by part at the moment at which they were most."""
        return max((p for both in self.points.values() for p in both), key=sum)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype, device="cpu").item()
        target = kwargs.get("device")
        if func is aten._to_copy.default and args[0].is_meta and target and target.type == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        made = [t for t in tree_iter(out) if isinstance(t, Tensor) and t.is_meta]
        new = [t for t in made if t.untyped_storage()._cdata not in self.alive]
        if new:
            from_weights = self._is_from_weights(args)
            for tensor in new:
                self._register(tensor, self._classify(func, tensor, from_weights), from_weights)
            self._record_point(func, new[0])
        return out

    def _move(self, key: int, part: str) -> None:
        size, old, reference = self.alive[key]
        self.current[old] -= size
        self.current[part] += size
        self.alive[key] = (size, part, reference)

    def _register(self, tensor: Tensor, part: str, weight_like: bool = False) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if weight_like:
            self.weight_like.add(key)
            self.weight_shapes.add(tensor.shape)

        def release(_: Any) -> None:
            freed, where, _reference = self.alive.pop(key)
            self.current[where] -= freed
            self.weight_like.discard(key)

        self.alive[key] = (size, part, ref(storage, release))
        self.current[part] += size

    def _is_from_weights(self, args: tuple[Any, ...]) -> bool:
        inputs = [t for t in tree_iter(args) if isinstance(t, Tensor) and t.is_meta]
        return bool(inputs) and all(t.untyped_storage()._cdata in self.weight_like for t in inputs)

    def _classify(self, func: Any, tensor: Tensor, from_weights: bool) -> str:
        """The part of a new tensor."""
        name = str(func)
        if name.startswith("aten._foreach"):
            return "optimizer"
        if name == "aten.zeros_like.default" and from_weights:
            return "gradients"
        if from_weights:
            return "weight_copies"
        if tensor.shape in self.weight_shapes:
            return "gradients"
        if tensor.ndim > 1 and tensor.shape[-1] == self.vocabulary:
            return "logits"
        return "activations"

    def _record_point(self, func: Any, tensor: Tensor) -> None:
        """A point is named by the backward pass, the operation and its shape, so that it can be found
        again in a model with more layers: there it occurs more often, and first and last are kept."""
        task = torch._C._current_graph_task_id()
        number = self.backward_passes.setdefault(task, len(self.backward_passes))
        state = tuple(self.current.values())
        key = (task != -1 and number, str(func), tensor.shape)
        self.points.setdefault(key, [state, state])[1] = state


def extrapolate(few: MemoryTrace, more: MemoryTrace, further_layers: int) -> Bytes:
    """The peak of a model of more layers, from traces of the same model that differ by one layer;
    `further_layers` are those beyond the first trace."""
    best: Bytes = (0,)
    for key, pair in few.points.items():
        for start, end in zip(pair, more.points.get(key, pair), strict=True):
            at_all = tuple(a + further_layers * (b - a) for a, b in zip(start, end, strict=True))
            best = max(best, at_all, key=sum)
    # a part that is freed layer by layer can come out below 0: the total is right, so another part has less
    missing = sum(min(0, part) for part in best)
    largest = best.index(max(best))
    return tuple(max(0, p) + (missing if n == largest else 0) for n, p in enumerate(best))


class _FusedAttention(torch.autograd.Function):
    """What a fused attention kernel allocates."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        normaliser = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, mask, out, normaliser)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (*(torch.empty_like(t) for t in ctx.saved_tensors[:3]), None)


@contextmanager
def _replace_functions(dtype: torch.dtype | None) -> Iterator[None]:
    """Fused attention, and with `dtype` what autocast does: matrix products in it, with one rounded copy of
    each weight. (PyTorch has no autocast for the meta device.)"""
    attention, linear, matmul = F.scaled_dot_product_attention, F.linear, torch.matmul
    rounded: dict[int, Tensor] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Tensor:
        if not q.is_meta:
            return attention(q, k, v, *args, **options)
        return _FusedAttention.apply(q, k, v, args[0] if args else options.get("attn_mask"))

    def convert(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor) or not tensor.is_meta:
            return tensor
        if not isinstance(tensor, torch.nn.Parameter):
            return tensor.to(dtype)
        if id(tensor) not in rounded:
            rounded[id(tensor)] = tensor.to(dtype)
        return rounded[id(tensor)]

    F.scaled_dot_product_attention = attend  # type: ignore[assignment]
    if dtype is not None:
        F.linear = lambda *args: linear(*map(convert, args))
        torch.matmul = lambda *args: matmul(*map(convert, args))
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.linear = attention, linear
        torch.matmul = matmul
