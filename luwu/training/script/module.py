"""The methods that `fully_shard` adds to a module: the class `LuwuModule`, put before its own.

As with FSDP2 the module stays the object it was; its class becomes `Luwu<Class>`, which derives
from `LuwuModule` and the class it had. Methods that would read or move
weights raise, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import torch
from torch import Tensor, nn

from luwu.base.errors import ConfigError, LuwuError, StepOrderError
from luwu.training.base.names import ORIGINAL
from luwu.training.script.session import Session
from luwu.training.steps.pulls import Pulls
from luwu.training.units.unit import Unit

_MEANINGLESS = {
    "set_requires_all_reduce": "there is no second reduction: the switch sums all ranks at once",
    "set_custom_all_gather": "weights are pulled from the network, not gathered from ranks",
    "set_custom_reduce_scatter": "gradients are pushed to the network, not scattered to ranks",
    "set_all_reduce_hook": "gradients are summed in the network, where no hook of a rank runs",
    "set_post_optim_event": "the optimizer runs on its node, so no stream waits for it",
    "set_reduce_scatter_divide_factor": "call set_gradient_divide_factor",
    "set_force_sum_reduction_for_comms": "gradients are always summed, and divided once at the end",
    "set_unshard_in_backward": "a backward that needs the weights after all would read freed ones",
    "set_allocate_memory_from_process_group_for_comm": "there is no process group",
    "set_symm_mem_for_comm": "there is no process group",
    "set_separate_reduce_scatter_group": "pushes and pulls have engines of their own already",
    "set_reduce_scatter_max_input_buffers": "gradients wait in cells, within the arena's size",
    "set_reduce_scatter_unused_params": "a unit without a gradient says so, and takes no room",
}
"""Methods of FSDP2 that a script may call, and why they are rejected."""


_OTHER_LOOPS = (
    "With Accelerate, give accelerator.prepare the data loaders alone, and neither this model nor "
    "its optimizer; Lightning's Trainer moves and wraps what it trains, so use Lightning Fabric "
    "by luwu.integrations.fabric (docs/fabric.md), or Hugging Face's Trainer by "
    "luwu.integrations.transformers (docs/huggingface.md)"
)
"""Advice for calls by other libraries."""


class UnshardHandle:
    """A pull under way, returned by `unshard(async_op=True)`."""

    def __init__(self, pulls: Pulls, unit: Unit) -> None:
        self._pulls, self._unit = pulls, unit

    def wait(self) -> None:
        """Return when the weights are in the module."""
        self._pulls.acquire(self._unit)


class LuwuModule:
    """A module that `fully_shard` was called on.

    The module stays the object it was and gains these methods, which have the names and meanings
    of FSDP2's `FSDPModule`. Methods that would read, move or replace weights raise, and name the
    call to use instead.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> batches = [torch.ones(2, 4), torch.zeros(2, 4)]
        >>> for x in batches:  # one push for both micro-batches
        ...     model.set_requires_gradient_sync(x is batches[-1])
        ...     (model(x).sum() / len(batches)).backward()
        >>> optimizer.step().number
        0
    """

    if TYPE_CHECKING:  # a module's own class may look up the type hints of what derives from it
        luwu_unit: Unit
        luwu_session: Session

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Making another one (a slice of a Sequential, say) makes the class it had before."""
        original: Any = cls.__mro__[2]
        made = original.__new__(original, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    # ---------------------------------------------------------------------- weights, by hand

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Pull the weights of this module's own unit.

        They stay until `reshard`, the end of the next forward or backward, or `step()`.

        Args:
            async_op: Return at once; the weights are here after `wait()` on the result.

        Returns:
            With `async_op`, an object with the method `wait`; otherwise None.

        Raises:
            StepAborted: If a step was lost.
        """
        session = self.luwu_session
        session.check_running()
        handle = UnshardHandle(session.pulls, self.luwu_unit)
        if async_op:
            session.pulls.prefetch(self.luwu_unit)
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Free the weights of this module's own unit."""
        self.luwu_session.check_running()
        self.luwu_session.pulls.forget(self.luwu_unit)

    def set_modules_to_forward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Request these modules' weights when this module's are used in forward."""
        self.luwu_unit.forward_prefetch = _units_of("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules: Sequence[nn.Module]) -> None:
        """Request these modules' weights when this module's are used in backward."""
        self.luwu_unit.backward_prefetch = _units_of("set_modules_to_backward_prefetch", modules)

    def set_reshard_after_forward(
        self, reshard_after_forward: bool, recurse: bool = True
    ) -> None:  # fmt: skip
        """Choose whether weights are freed after forward; of all submodules too with `recurse`."""
        self._set("reshard_after_forward", reshard_after_forward, recurse)

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:  # fmt: skip
        """Choose whether weights are freed after backward.

        False keeps them until `step()`, so the next micro-batch pulls nothing.
        """
        self._set("reshard_after_backward", reshard_after_backward, recurse)

    # ---------------------------------------------------------------------- gradients

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:  # fmt: skip
        """Choose whether the next backward pushes gradients.

        False keeps them on this worker, in float32, until a backward pushes them. By default every
        backward is pushed and the node adds the gradients, which needs no memory on the worker.
        """
        self._set("requires_gradient_sync", requires_gradient_sync, recurse)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """State whether the next backward is the last one before `step()`.

        With `update="streaming"`, which pushes one backward, gradients of the others stay on this
        worker until then.
        """
        _check_bool("is_last_backward", is_last_backward)
        self.luwu_session.backward.is_last = is_last_backward

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide the sum of all ranks' gradients of this module's unit by `factor`.

        By default it is divided by the number of ranks. The factor must be equal on all ranks.

        Raises:
            ConfigError: If the factor is not above 0 and finite, or `set_gradient_weight` is in
                use.
            StepOrderError: In the middle of a step.
        """
        session = self.luwu_session
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError(f"the divide factor must be above 0 and finite, got {factor!r}")
        if session.backward.gradient_weight != 1:
            raise ConfigError(
                "set_gradient_weight and set_gradient_divide_factor both say what gradients are "
                "divided by; use one of them"
            )
        if session.progress.parts or session.backward.is_open:
            raise StepOrderError(
                f"set_gradient_divide_factor in the middle of step {session.step}; call it before "
                "the step's first backward"
            )
        self.luwu_unit.divide_factor = float(factor)

    def reset_iter_state(self) -> None:
        """Forget a forward or backward that an error ended; call it on the root.

        Gradients of the step that were pushed already are dropped, as `zero_grad()` drops them.

        Raises:
            ConfigError: If this module is not the root.
        """
        unit = self.luwu_unit
        if not unit.is_root:
            raise ConfigError(
                f"reset_iter_state of unit {unit.name}: call it on the root, the module that "
                "luwu.fully_shard was called on last"
            )
        self.luwu_session.reset()

    def _set(self, flag: str, value: bool, recurse: bool) -> None:
        """Set a flag of this module's unit, or of all in it."""
        _check_bool(flag, value)
        module = cast(nn.Module, self)
        for each in module.modules() if recurse else [module]:
            if isinstance(each, LuwuModule):
                setattr(each.luwu_unit, flag, value)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the forward, as `nn.Module.compile`; weights come and go around it."""
        super().compile(*args, **kwargs)  # type: ignore[misc]
        for module in self.luwu_unit.modules:
            if cast(object, module) is self:
                self.luwu_session.hooks.register(self.luwu_unit, module)

    # ---------------------------------------------------------------------- what cannot be

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: the weights are in the network."""
        raise LuwuError(
            "state_dict() of a sharded model would save placeholders: the weights are in the "
            "network. The node's state is the checkpoint; luwu.get_model_state_dict collects "
            "weights"
        )

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: the weights are in the network."""
        raise LuwuError(
            "load_state_dict() into a sharded model would write placeholders: the weights are in "
            "the network. Before the first forward call luwu.set_model_state_dict, or "
            "luwu.load_pretrained for files"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients since the last step, as the optimizer's `zero_grad` does."""
        self.luwu_session.zero_grad(set_to_none)

    def to_empty(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: the weights are in the network."""
        raise ConfigError(
            "to_empty() of a sharded model: its weights are in the network, so no memory is made "
            "for them here. Leave it out; a model that was made on meta is filled unit by unit, by "
            "the reset_parameters() of its modules or by luwu.init_weights(model, fn), and its "
            "buffers with it"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Change the buffers: called by `.to()`, `.cuda()`, `.float()` and others.

        Raises: ConfigError if weights would have to.
        """
        module, session = cast(nn.Module, self), self.luwu_session
        for dtype in {parameter.dtype for parameter in module.parameters()}:
            probe = torch.empty(0, dtype=dtype, device=session.device)
            if fn(probe) is not probe:
                raise ConfigError(
                    "a sharded model cannot be moved or cast: its weights are in the network. Call "
                    ".to() before luwu.fully_shard; choose the dtype of compute with mp_policy=. "
                    f"{_OTHER_LOOPS}"
                )
        for inner in module.modules() if recurse else [module]:
            for name, buffer in inner._buffers.items():
                if buffer is not None:
                    inner._buffers[name] = fn(buffer)
        return self

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> NoReturn:
        """Refuse DistributedDataParallel, which reads this first of a module to wrap."""
        raise ConfigError(
            "DistributedDataParallel would average gradients that the network sums already; leave "
            f"it out and call the model itself. {_OTHER_LOOPS}"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise LuwuError(
            "a sharded model cannot be copied: its weights are in the network. Copy it before "
            "luwu.fully_shard; for an average of weights create the optimizer with "
            "average=luwu.ema(decay) or luwu.swa(start)"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise LuwuError(
            "a sharded model cannot be pickled: its weights are in the network. Save what "
            "luwu.get_model_state_dict returns, or call luwu export"
        )


def _refusal(name: str, reason: str) -> Any:
    def refuse(self: LuwuModule, *args: object, **kwargs: object) -> NoReturn:
        raise ConfigError(f"{name} means nothing here: {reason}")

    refuse.__name__, refuse.__doc__ = name, f"Raises: {reason}."
    return refuse


for _name, _reason in _MEANINGLESS.items():
    setattr(LuwuModule, _name, _refusal(_name, _reason))


def _units_of(where: str, modules: Sequence[nn.Module]) -> list[Unit]:
    units = []
    for each in modules:
        if not isinstance(each, LuwuModule):
            raise ConfigError(f"{where}: luwu.fully_shard was not called on this {type(each)}")
        units.append(each.luwu_unit)
    return units


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


_sharded_classes: dict[type[nn.Module], type[nn.Module]] = {}


def become_sharded(module: nn.Module, unit: Unit, session: Session) -> None:
    """Put `LuwuModule` before the module's class."""
    original = type(module)
    if original not in _sharded_classes:
        content = {ORIGINAL: original, "__module__": original.__module__}
        sharded = type(f"Luwu{original.__name__}", (LuwuModule, original), content)
        _sharded_classes[original] = sharded
    module.__class__ = _sharded_classes[original]
    module.__dict__["luwu_unit"] = unit
    module.__dict__["luwu_session"] = session
