"""Placeholders in modules for parameters whose weights are not here.

A `Placeholder` is an `nn.Parameter` with shape, dtype, device, `requires_grad` and a name, and no
storage. It has two nets, one below the other: `__torch_function__` lets only `NEED_NO_VALUE`
through, and `__torch_dispatch__` refuses whatever reaches an operator nevertheless. (Some methods
of a tensor without storage, such as `share_memory_`, crash the interpreter where they are not
refused.)

Names, parameter groups and counts work as ever. Whatever would read or write a value raises, and
so does `.grad`: the gradient is pushed inside backward, and a `.grad` of None would let
`torch.nn.utils.clip_grad_norm_` clip nothing without a word.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from luwu.base.errors import ConfigError, LuwuError

NEED_NO_VALUE = frozenset(
    [
        *(
            getattr(Tensor, name).__get__
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
        vars(torch._C.TensorBase)["requires_grad"].__set__, Tensor.size, Tensor.storage_offset,
        Tensor.stride, torch.is_complex, torch.is_floating_point, torch.is_inference, torch.numel,
    ]
)  # fmt: skip
"""Functions of torch that need no value."""


class PlaceholderError(LuwuError):
    """The script asked a placeholder for what only the real parameter has."""

    code = "E103"


class _GradientHook(NamedTuple):
    """A function of the script, for the gradient of a parameter."""

    call: Callable[[Any], Any]
    has_parameter: bool
    """It gets the parameter, as `register_post_accumulate_grad_hook` says; else the gradient."""


class Placeholder(nn.Parameter):
    """See the module."""

    luwu_name: str
    luwu_owner: object
    """The session that it belongs to."""
    luwu_place: tuple[nn.Module, str]
    """The root that it is in, and its name there; known when the optimizer is made."""
    luwu_value: Tensor | None
    """The parameter as the script made it, until its values are uploaded."""
    luwu_hooks: OrderedDict[int, _GradientHook] | None
    """Hooks that the script registered, in order."""

    @staticmethod
    def __new__(
        cls, parameter: nn.Parameter, *, owner: object, device: torch.device, keeps_value: bool
    ) -> Placeholder:
        """Take the place of `parameter` on this device; keep its value, or only that it is on
        `meta`.
        """
        self: Placeholder = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            dtype=parameter.dtype,
            device=device,
            requires_grad=parameter.requires_grad,
        )
        self.luwu_owner = owner
        self.luwu_name, self.luwu_hooks = "?", None
        self.luwu_value = parameter if parameter.is_meta or keeps_value else None
        return self

    def __init__(self, parameter: nn.Parameter, **options: object) -> None:
        pass

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in NEED_NO_VALUE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        cls._refuse_call(args, kwargs, getattr(func, "__name__", str(func)))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> NoReturn:
        cls._refuse_call(args, kwargs, str(func))

    def __hash__(self) -> int:
        return id(self)

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call this with the gradient of each backward; what it returns takes its place."""
        return self._register(_GradientHook(hook, has_parameter=False))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call this with the parameter when a backward has its gradient, `.grad`, complete: that of
        this backward alone, just before it is pushed."""
        return self._register(_GradientHook(hook, has_parameter=True))

    def _register(self, hook: _GradientHook) -> RemovableHandle:
        if not self.requires_grad:
            raise RuntimeError(
                f"parameter {self.luwu_name} requires no gradient, so no hook of it would run"
            )
        if self.luwu_hooks is None:
            self.luwu_hooks = OrderedDict()
        handle = RemovableHandle(self.luwu_hooks)
        self.luwu_hooks[handle.id] = hook
        return handle

    def run_hooks(self, parameter: nn.Parameter) -> None:
        """Call the hooks: the gradient of `parameter`, the real one, is complete."""
        assert self.luwu_hooks is not None
        hooks = sorted(self.luwu_hooks.values(), key=lambda each: each.has_parameter)
        for each in hooks:
            if each.has_parameter:
                each.call(parameter)
                continue
            changed = each.call(parameter.grad)
            if changed is not None:
                parameter.grad = changed

    @property
    def grad(self) -> NoReturn:
        """Raises: gradients are pushed inside backward."""
        raise PlaceholderError(
            f"the gradient of parameter {self.luwu_name} is not here: it is pushed to the network "
            "inside backward. To clip, call luwu.clip_grad_norm_ or pass max_grad_norm= to the "
            "optimizer; to drop gradients, call zero_grad() of the optimizer; instead of "
            "torch.amp.GradScaler give the optimizer loss_scale=; instead of "
            "get_optimizer_state_dict of torch.distributed.checkpoint call "
            "luwu.get_optimizer_state_dict"
        )

    @grad.setter
    def grad(self, value: object) -> NoReturn:
        raise PlaceholderError(
            f"the gradient of parameter {self.luwu_name} cannot be set here: it is pushed to the "
            "network inside backward. To drop gradients, call zero_grad() of the optimizer"
        )

    @property
    def data(self) -> NoReturn:
        """Raises: there are no values."""
        self._refuse("data", self.luwu_name)

    @data.setter
    def data(self, value: object) -> NoReturn:
        self._refuse("data", self.luwu_name)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Placeholder({self.luwu_name}, shape={tuple(self.shape)}, dtype={dtype})"

    @classmethod
    def _refuse_call(cls, args: Any, kwargs: Any, what: str) -> NoReturn:
        values = [*args, *(kwargs or {}).values()]
        flat = [e for v in values for e in (v if isinstance(v, (list, tuple)) else [v])]
        name = next((v.luwu_name for v in flat if isinstance(v, Placeholder)), "?")
        cls._refuse(what, name)

    @staticmethod
    def _refuse(what: str, name: str) -> NoReturn:
        if what == "grad":
            raise PlaceholderError(
                f"torch.autograd.grad: the gradient of parameter {name} is pushed to the network "
                "inside backward, and is nowhere else; call loss.backward()"
            )
        raise PlaceholderError(
            f"{what}: the weights of parameter {name} are in the network, not in this process. "
            "They are here only inside the forward and backward of the module that fully_shard was "
            "called on, and only as attributes of their modules (a list or a variable that holds "
            "the parameter has none): call that module itself, or luwu.register_forward_method for "
            "another method than forward. To read weights use luwu.get_model_state_dict; to set "
            "the first ones, luwu.set_model_state_dict. Later only the optimizer changes them"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise PlaceholderError(
            f"parameter {self.luwu_name} cannot be copied: its weights are in the network. Copy "
            "the model before luwu.fully_shard"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PlaceholderError(
            f"parameter {self.luwu_name} cannot be saved: its weights are in the network; "
            "luwu.get_model_state_dict collects them"
        )


@contextmanager
def without_weak_references(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Around `become_placeholder`, which weak references forbid: torch's RNNs keep some to their
    weights."""
    recurrent = [module for module in modules if isinstance(module, nn.RNNBase)]
    for module in recurrent:
        module._flat_weight_refs = []
    yield
    for module in recurrent:
        weights = (getattr(module, name, None) for name in module._flat_weights_names)
        module._flat_weight_refs = [None if each is None else weakref.ref(each) for each in weights]


def become_placeholder(
    parameter: nn.Parameter, name: str, *, owner: object, device: torch.device, keeps_value: bool
) -> None:
    """Turn this very tensor into a placeholder, with its first values beside it.

    All that holds the parameter holds the placeholder from now on: a list, a closure or another
    module that kept the parameter itself would compute with its first values for ever.
    Raises: ConfigError if torch cannot swap it: a graph or a weak reference holds it.
    """
    placeholder = Placeholder(parameter, owner=owner, device=device, keeps_value=keeps_value)
    placeholder.luwu_name = name
    has_value, placeholder.luwu_value = placeholder.luwu_value is not None, None
    try:
        torch.utils.swap_tensors(parameter, placeholder)
    except RuntimeError as error:
        raise ConfigError(
            f"luwu.fully_shard: something holds parameter {name} as it is now: the graph of an "
            "earlier forward, code that was compiled by one, or a weak reference. Call "
            f"luwu.fully_shard before the model is used ({error})"
        ) from error
    # The two tensors have changed places: what was made above has the values now.
    if has_value:
        cast("Placeholder", parameter).luwu_value = placeholder
