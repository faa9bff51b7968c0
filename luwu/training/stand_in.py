"""A parameter that is not here: shape, dtype, `requires_grad` and a name, and no storage.

Two nets, one below the other: `__torch_function__` lets only `NEED_NO_VALUE` through, and
`__torch_dispatch__` refuses whatever reaches an operator nevertheless. (Some methods of a tensor
without storage, such as `share_memory_`, crash the interpreter where they are not refused.)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from luwu.base.errors import ConfigError


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


def _setter(name: str) -> Any:
    return getattr(Tensor, name).__set__


NEED_NO_VALUE = frozenset(
    [
        *(
            _getter(name)
            for name in (
                "device", "dtype", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta",
                "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse", "itemsize",
                "layout", "nbytes", "ndim", "output_nr", "requires_grad",
                "retains_grad", "shape",
            )
        ),
        Tensor.__hash__, Tensor.__len__, Tensor.dim, Tensor.element_size, Tensor.get_device,
        Tensor.is_complex, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_inference,
        Tensor.is_signed, Tensor.ndimension, Tensor.nelement, Tensor.numel, Tensor.requires_grad_,
 _setter("requires_grad"), Tensor.size, Tensor.storage_offset, Tensor.stride,
        torch.is_complex, torch.is_floating_point, torch.is_inference, torch.numel,
    ]
)  # fmt: skip
"""What may be asked without a value."""


class StandIn(nn.Parameter):
    """A parameter without storage: what needs no value works, and everything else is refused."""

    luwu_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in NEED_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        cls._refuse(args, kwargs, getattr(func, "__name__", str(func)))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        cls._refuse(args, kwargs, str(func))

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def _refuse(cls, args: Any, kwargs: Any, what: str) -> NoReturn:
        values = [*args, *(kwargs or {}).values()]
        flat = [e for v in values for e in (v if isinstance(v, (list, tuple)) else [v])]
        name = next((v.luwu_name for v in flat if isinstance(v, StandIn)), "?")
        cls.refuse(what, name)

    @staticmethod
    def refuse(what: str, name: str) -> NoReturn:
        """Say that parameter `name` has no value for this, and what to do. Raises LuwuError."""
        raise NotImplementedError


def become(parameter: nn.Parameter, stand_in: StandIn, call: str) -> None:
    """Let the two tensors change places: whoever holds `parameter` holds the stand-in from now on.

    A list, a closure or another module that kept the parameter itself would compute with its first
    values for ever. `call` is what the script called.
    Raises: ConfigError if torch cannot swap it: a graph or a weak reference holds it.
    """
    name = stand_in.luwu_name
    try:
        torch.utils.swap_tensors(parameter, stand_in)
    except RuntimeError as error:
        raise ConfigError(
            f"{call}: something holds parameter {name} as it is now: the graph of an earlier "
            f"forward, code that was compiled by one, or a weak reference. Call {call} before the "
            f"model is used ({error})"
        ) from error


@contextmanager
def without_weak_references(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Around `become`: torch's RNNs keep weak references to their weights, which forbid it."""
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module._flat_weight_refs = []
    yield
    for module in recurrent:
        weights = (getattr(module, name, None) for name in module._flat_weights_names)
        module._flat_weight_refs = [None if each is None else weakref.ref(each) for each in weights]
