"""Hooks around a unit's forward, and what they leave in the graph for backward.

    before forward   a GPU's root: inputs on the CPU move to it; pull, wait; a node on the inputs
                     that closes the call in backward
    after forward    a hook on the outputs that opens the call in backward; free

In backward a forward may run again (activation checkpointing). A non-reentrant checkpoint wants the
activations alone: the first forward's graph is the one that counts, so no hooks are set, and the
weights stay for it. A reentrant one had no graph until now, so this forward gets the hooks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from luwu.base.clock import SYSTEM_CLOCK
from luwu.nic.shell import Nic
from luwu.training.base.progress import Progress
from luwu.training.base.torch_state import (
    in_backward,
    is_transformed,
    outside_transforms,
    uncompiled,
)
from luwu.training.devices.weights import WEIGHTS
from luwu.training.steps.backward import Backward
from luwu.training.steps.pulls import Pulls
from luwu.training.units.model import Model
from luwu.training.units.unit import Call, Unit

_PLAIN = (Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Leaves of an output in which no other tensor can hide."""


class Hooks:
    """The hooks around the forwards of a session's units."""

    def __init__(
        self, nic: Nic, model: Model, *, device: torch.device, progress: Progress, pulls: Pulls,
        backward: Backward, begin_forward: Callable[[Unit, bool], None],
    ) -> None:  # fmt: skip
        """`begin_forward`: called before each forward outside of backward, with True if a backward
        may follow."""
        self._device = device
        self._nic, self._model, self._progress = nic, model, progress
        self._pulls, self._backward = pulls, backward
        self._begin_forward = begin_forward

    def register(self, unit: Unit, module: nn.Module) -> None:
        """Put the hooks on one of the unit's modules; around its compiled call, if it has one.

        Hooks inside of what is compiled would cut it in two, which `fullgraph=True` refuses.
        """
        for handle in unit.hooks.pop(module, ()):
            handle.remove()
        compiled = module._compiled_call_impl
        if compiled is None:
            before = functools.partial(self.before_forward, unit)
            unit.hooks[module] = (
                module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
                module.register_forward_hook(functools.partial(self.after_forward, unit)),
            )
            return

        @uncompiled
        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.before_forward(unit, module, args, kwargs)
            return self.after_forward(unit, module, args, compiled(*args, **kwargs))

        module._compiled_call_impl = call

    @uncompiled
    def before_forward(
        self, unit: Unit, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Pull the unit; returns the inputs to use."""
        if unit.is_root and self._device.type != "cpu":
            args, kwargs = move_tensors((args, kwargs), self._device)
        if not self._pulls.is_started and self._model.is_empty:  # there is no job to join
            return _cast_inputs(unit, args, kwargs)
        if is_transformed():
            with outside_transforms():
                self._begin_forward(unit, False)
                self._pulls.acquire(unit)
            self._pulls.in_transforms.add(unit)
            return _cast_inputs(unit, args, kwargs)
        if self._pulls.in_transforms:
            self._pulls.leave_transforms()
        repeated = in_backward()
        if repeated:
            self._backward.enter()
        else:
            self._begin_forward(unit, torch.is_grad_enabled() and unit.is_trainable)
        self._pulls.acquire(unit)
        args, kwargs = _cast_inputs(unit, args, kwargs)
        call = None
        if not torch.is_grad_enabled():
            if module.training and not repeated:
                unit.hidden_calls += 1
        elif not repeated or unit.hidden_calls > 0:
            if repeated:
                unit.hidden_calls -= 1
            progress = self._progress
            unit.calls += 1
            call = Call(unit, progress.step, progress.aborts_count)
            args, kwargs = self._close_on_inputs(call, args, kwargs)
        unit.current[module] = (call, SYSTEM_CLOCK.now_ns())
        return args, kwargs

    @uncompiled
    def after_forward(self, unit: Unit, module: nn.Module, args: Any, output: Any) -> Any:
        """Free the unit; returns the output to use."""
        if not self._pulls.is_started or is_transformed():
            return _cast_output(unit, output)
        call, start_ns = unit.current.pop(module, (None, 0))
        end_ns = SYSTEM_CLOCK.now_ns()
        step = self._progress.step
        self._nic.recorder.span("forward", start_ns, end_ns, step=step, unit=unit.name)
        if call is None:
            output = _map(_own_memory, output)
        else:
            output = self._open_on_outputs(call, output)
        is_complete = unit.has_run(module)
        # What is repeated in backward is about to be used there.
        if unit.reshard_after_forward and is_complete and not (unit.is_kept or in_backward()):
            self._pulls.release(unit)
        return _cast_output(unit, output)

    def _close_on_inputs(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs: dict[int, Tensor] = {}

        def collect(tensor: Tensor) -> Tensor:
            if tensor.requires_grad:
                inputs[id(tensor)] = tensor
            return tensor

        _map(collect, (args, kwargs))
        if not inputs:
            return args, kwargs
        outputs = _Close.apply(self._backward, call, *inputs.values())
        marked: dict[int, Tensor] = dict(zip(inputs, outputs, strict=True))
        # One for one: a module may ask whether two of its inputs are the same tensor.
        return _map(lambda tensor: marked.get(id(tensor), tensor), (args, kwargs))

    def _open_on_outputs(self, call: Call, output: Any) -> Any:
        backward, seen = self._backward, 0

        def mark(tensor: Tensor) -> Tensor:
            nonlocal seen
            tensor = _own_memory(tensor)
            if not tensor.requires_grad:
                return tensor
            seen += 1
            if tensor._is_view():
                # An operation in place on a view drops its hooks; on this it is refused by torch.
                marked: Tensor = _Open.apply(backward, call, tensor)
                return marked
            tensor.register_hook(functools.partial(backward.open, call))
            return tensor

        opaque: list[Any] = []
        output = _map(mark, output, opaque)
        if opaque:
            self._keep(call.unit, type(opaque[0]))
        elif not seen:
            call.unit.calls -= 1  # no backward can reach it
        return output

    def _keep(self, unit: Unit, kind: type) -> None:
        """It returned an object of this kind, which may lead backward to it past our hooks."""
        if unit.keep() and unit.reshard_after_forward and self._nic.rank == 0:
            self._nic.recorder.event(
                "worker.opaque_output", unit=unit.name, returns=kind.__name__,
                consequence="its weights stay until its backward",
            )  # fmt: skip


def _cast_output(unit: Unit, output: Any) -> Any:
    dtype = unit.policy.output_dtype
    return output if dtype is None else _map(functools.partial(_cast, dtype), output)


def _cast_inputs(
    unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    policy = unit.policy
    if policy.param_dtype is None or not policy.cast_forward_inputs:
        return args, kwargs
    cast = functools.partial(_cast, policy.param_dtype)
    return _map(cast, args), _map(cast, kwargs)


def _cast(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _own_memory(tensor: Tensor) -> Tensor:
    """A weight that a unit returns (a tied head outside of it), as a copy that outlives the unit.

    Its gradient goes to the weight as any other. The weight itself will be freed, and it is one
    tensor in all steps, which would keep the hooks of each.
    """
    return tensor.clone() if tensor in WEIGHTS else tensor


class _Close(torch.autograd.Function):
    """Passes inputs on; in backward it runs after everything the unit did with them."""

    @staticmethod
    def forward(ctx: Any, backward: Backward, call: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.pass_, ctx.call = backward, call
        ctx.set_materialize_grads(False)
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.pass_.close(ctx.call)
        return (None, None, *grads)


class _Open(torch.autograd.Function):
    """Passes an output on; in backward it runs before everything the unit did for it."""

    @staticmethod
    def forward(ctx: Any, backward: Backward, call: Call, output: Tensor) -> Tensor:
        ctx.pass_, ctx.call = backward, call
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        ctx.pass_.open(ctx.call)
        return None, None, grad


def _map(fn: Callable[[Tensor], Any], tree: Any, opaque: list[Any] | None = None) -> Any:
    """`tree` with `fn` applied to its tensors: in tuples, lists, dicts and dataclasses.

    Other objects, which may hold tensors too, are added to `opaque`.
    """
    if type(tree) is Tensor:
        return fn(tree)

    def leaf(value: Any) -> Any:
        if isinstance(value, Tensor):
            return fn(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
            return dataclasses.replace(value, **_map(fn, fields, opaque))
        if opaque is not None and not isinstance(value, _PLAIN):
            opaque.append(value)
        return value

    return map_leaves(leaf, tree)


_LEAVES: Final = frozenset({Tensor, nn.Parameter, type(None), bool, int, float, str})


def map_leaves(
    fn: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """`tree` with `fn` applied to each leaf, from left to right, as torch's pytree does it.

    `torch.utils._pytree` leaves a cycle of closures behind for each tree it looks at; at some trees
    a unit that is garbage for the collector, and memory that waits for it. The trees that modules
    take and return are nearly always plain, so these are walked here, and all others by torch.

    `is_leaf`: what else is one, beside what has nothing in it.
    """
    kind = type(tree)
    if kind in _LEAVES:
        return fn(tree)
    if kind is tuple or kind is list:
        return kind([map_leaves(fn, each, is_leaf) for each in tree])
    if kind is dict:
        return {key: map_leaves(fn, each, is_leaf) for key, each in tree.items()}
    return pytree.tree_map(fn, tree, is_leaf=is_leaf)


def move_tensors(tree: Any, device: torch.device) -> Any:
    """`tree` with its tensors on `device`, as FSDP2 and DDP move a model's inputs."""

    def move(leaf: Any) -> Any:
        is_movable = isinstance(leaf, (Tensor, PackedSequence))
        return leaf.to(device) if is_movable else leaf

    # The batch sizes of a PackedSequence stay on the CPU, which only its own method knows.
    return map_leaves(move, tree, lambda node: isinstance(node, PackedSequence))
