"""A device `standin:0` for machines without a GPU: its tensors compute on the CPU but do not mix with it.

A tensor on it wraps a CPU tensor. An operation on tensors of both devices raises, as on a GPU, and so does an
index that is on the other device, for which a GPU would have to wait. Operations after which the host waits
for the device (`.item()`, `.tolist()`, copies to the CPU, `nonzero`) are counted in `SYNCHRONISATIONS`.

Example:
    with stand_in_device():
        policy.model.to("standin")
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "standin"
SYNCHRONISATIONS: Counter[str] = Counter()
"""How often the host waited for the device, by the line of the package that made it wait."""
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "item"}
_COPYING = {"copy_", "_copy_from", "_to_copy", "set_data"}
aten = torch.ops.aten


class DeviceTensor(torch.Tensor):
    """A tensor on the stand-in device."""

    on_cpu: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> DeviceTensor:
        assert type(inner) is torch.Tensor
        assert inner.device.type == "cpu"
        tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, device=torch.device(NAME, 0), requires_grad=requires_grad,
        )  # fmt: skip
        tensor.on_cpu = inner
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.on_cpu})"

    def tolist(self) -> Any:  # torch refuses it for subclasses
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class _Factories(TorchDispatchMode):
    """Sends functions that create tensors on the device, which have no tensor argument, to `_run`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _is_standin(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    on_device = [t for t in tensors if isinstance(t, DeviceTensor)]
    on_cpu = [t for t in tensors if not isinstance(t, DeviceTensor)]
    name = func.overloadpacket.__name__
    target = kwargs.get("device")
    if not on_device and not _is_standin(target):
        return func(*args, **kwargs)
    if on_device and name not in _COPYING and any(t.ndim for t in on_cpu):
        raise RuntimeError(f"Expected all tensors to be on the same device: {func}.")
    to_cpu = target is not None and torch.device(target).type == "cpu"
    if on_device and (name in _WAITING or to_cpu or _copies_to_host(name, args)):
        SYNCHRONISATIONS[_find_caller()] += 1
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map(
        lambda t: t.on_cpu if isinstance(t, DeviceTensor) else t, (args, kwargs)
    )
    out = func(*inner_args, **inner_kwargs)
    if name == "copy_":  # returns its first argument, whichever device that is on
        return args[0]
    if to_cpu:
        return out if out is not inner_args[0] else out.clone()
    out = tree_map(lambda t: DeviceTensor(t) if type(t) is torch.Tensor else t, out)
    if name == "_to_copy" or not on_device:
        return out
    return return_and_correct_aliasing(func, args, kwargs, out)


def _copies_to_host(name: str, args: Any) -> bool:
    return (
        name == "copy_"
        and isinstance(args[1], DeviceTensor)
        and not isinstance(args[0], DeviceTensor)
    )


def _find_caller() -> str:
    for frame in reversed(traceback.extract_stack()):
        if "/glasshouse/" in frame.filename:
            return f"{frame.filename.split('/glasshouse/')[-1]}:{frame.name}"
    return "elsewhere"


class _DeviceModule(_DummyBackendModule):
    """What PyTorch asks of `torch.standin`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


@cache
def _register() -> torch.library.Library:
    """Registers the device once per process, with kernels for what bypasses modes, as `torch.tensor` does."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=_DeviceModule())
    library = torch.library.Library("aten", "IMPL")

    def empty_strided(
        size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None,
        pin_memory: Any = None,
    ) -> Any:  # fmt: skip
        return DeviceTensor(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

    def empty(
        size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Any:  # fmt: skip
        return DeviceTensor(torch.empty(size, dtype=dtype, device="cpu"))

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        return _run(aten.copy_.default, (target, source), {})

    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return library


@contextmanager
def stand_in_device() -> Iterator[None]:
    """Inside, tensors can be created on and moved to the device."""
    _register()
    SYNCHRONISATIONS.clear()
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # keeps tied weights tied
    try:
        # In one thread: autograd has no thread for a device that is registered after its first use.
        with torch.autograd.set_multithreading_enabled(False), _Factories():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swap)
