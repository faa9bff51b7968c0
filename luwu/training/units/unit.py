"""A unit: the parameters of one `fully_shard` call, between pull and free.

    away       the modules hold placeholders, the storage has no bytes
    pulled     the storage is being filled, or full and unused (`prefetch.py` keeps it)
    installed  the modules hold parameters that are views of the storage

`Unit` knows its modules and what happened to it in this step; it asks the network for nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from luwu.base.address_range import Memory
from luwu.base.errors import ConfigError, LuwuError
from luwu.layout import Layout
from luwu.training.base.names import class_name
from luwu.training.devices.device import CudaDevice, Device
from luwu.training.devices.weights import WRITTEN, ByteCount, DeviceWeights, UnitWeights
from luwu.training.units.placeholder import Placeholder

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """torch's MixedPrecisionPolicy, as far as it means something here.

    Who gives none need not import torch's, which takes half a second and brings DTensor along.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True

    @classmethod
    def of(cls, policy: MixedPrecisionPolicy | None) -> Precision:
        """The same; None is a policy that changes nothing."""
        if policy is None:
            return cls()
        return cls(**{field.name: getattr(policy, field.name) for field in fields(cls)})


@dataclass(slots=True)
class Member:
    """One parameter of a unit, and every place where it is registered (several if tied)."""

    placeholder: Placeholder
    places: list[tuple[nn.Module, str]] = field(default_factory=list)
    start: int = 0
    """First element in the unit's flat vector."""
    trainable: bool = False
    """The state has room for its moments: it required a gradient when the optimizer was made, or
    was in one of the optimizer's groups."""
    requires_grad: bool = False
    """True if the script wants it trained now; see `Unit.follow_requires_grad`."""

    def place_in(self, flat: torch.Tensor) -> torch.Tensor:
        """Its part of the unit's flat vector, in its shape."""
        shape = self.placeholder.shape
        return flat[self.start : self.start + shape.numel()].view(shape)


@dataclass(slots=True, eq=False)
class Call:
    """One forward of a unit whose graph may be run backward."""

    unit: Unit
    step: int
    """The step whose weights it saw."""
    aborts: int
    """Aborts before it; a graph does not outlive one."""
    opened_ns: int | None = None
    """When the gradient of its outputs was known, until that of its inputs is."""


class Unit:
    """See the module."""

    def __init__(
        self, modules: Sequence[nn.Module], *, policy: Precision,
        reshard_after_forward: bool | None,
    ) -> None:  # fmt: skip
        self.modules = tuple(modules)
        self.hooks: dict[nn.Module, tuple[RemovableHandle, ...]] = {}
        """Hooks by module; a module that is compiled has none."""
        self.policy = policy
        self.reshard_after_forward = reshard_after_forward
        """True if the weights are freed after forward; None: as the run has it, chosen later."""
        self.name = ""
        self.is_root = False
        self.below: frozenset[int] = frozenset()
        """Indices of its model's units in the layout, if it is a root."""
        self.index = -1
        """Index in the layout; -1 while it has none, and for a unit without parameters."""
        self.members: list[Member] = []
        self.weights: UnitWeights
        """Made when the job is joined; a unit without parameters has none."""
        self.wire_dtype = "float32"
        self.push_dtype = torch.float32
        """Dtype of pushed gradients: that of its weights, unless the policy has a reduce_dtype."""
        self.is_trainable = False
        """True if anything of it is pushed."""
        self.nbytes = 0
        """Bytes of its weights here, while they are."""

        self.reshard_after_backward = True
        self.requires_gradient_sync = True
        """False: what a backward leaves stays here until one is pushed."""
        self.divide_factor: float | None = None
        """Divisor of the sum of all ranks; None: the sum of their weights."""
        self.forward_prefetch: list[Unit] = []
        self.backward_prefetch: list[Unit] = []
        """Units to ask for when this one is used, beside those that the last step foresees."""

        self.is_installed = False
        self.is_kept = False
        """True if the weights stay while a graph of this step may be run backward: a forward has
        returned an object that may hold tensors, or a backward had a graph itself."""
        self.uses = 0
        """Pulls within the step that were used."""
        self.was_pushed = False
        """True if it was pushed in this step; while a backward runs: in this backward."""
        self.calls = 0
        """Forwards with a graph that have not been run backward."""
        self.hidden_calls = 0
        """Forwards without a graph that a reentrant checkpoint may repeat in backward."""
        self.open_calls: set[Call] = set()
        self.modules_run: set[nn.Module] = set()
        """Modules that ran since it was pulled, for a unit of several."""
        self.current: dict[nn.Module, tuple[Call | None, int]] = {}
        """Forwards under way: their graph, and when they began."""
        self.with_gradient: set[int] = set()
        """Indices of members that had a gradient in this step which was pushed."""
        self.kept: list[torch.Tensor | None] = []
        """float32 sums of the gradients of backwards that were not pushed, by member."""

    # ---------------------------------------------------------------------- the layout

    def choose_wire_dtype(self, name: str) -> None:
        """Its weights travel in this dtype; so do its gradients, unless the policy has another."""
        self.wire_dtype = name
        self.push_dtype = self.policy.reduce_dtype or getattr(torch, name)

    def take_place(self, index: int, layout: Layout, trained: Container[Placeholder]) -> None:
        """The layout is made, and this is its place; `trained`: what the optimizer has."""
        self.index = index
        for member, parameter in zip(self.members, layout.units[index].parameters, strict=True):
            member.start = layout.placements[parameter].start
            member.trainable = member.placeholder in trained
            member.requires_grad = member.placeholder.requires_grad
        self.is_trainable = bool(layout.trainable_extents(index))

    def make_weights(
        self, device: Device, memory: Memory, *, elems: int, live_bytes: ByteCount
    ) -> None:
        """The layout is known: make the storage, empty."""
        dtype = getattr(torch, self.wire_dtype)
        places = [(m.start, m.placeholder.shape, m.requires_grad) for m in self.members]
        given: Any = {"elems": elems, "dtype": dtype, "live_bytes": live_bytes, "places": places}
        if isinstance(device, CudaDevice):
            self.weights = DeviceWeights(device=device, name=self.name, **given)
        else:
            self.weights = UnitWeights(memory=memory, name=self.name, **given)
        self.nbytes = self.weights.nbytes

    # ---------------------------------------------------------------------- weights

    def install(self) -> None:
        """The weights have come: let the modules see them."""
        assert not self.is_installed
        for member, parameter in zip(self.members, self.weights.parameters, strict=True):
            if parameter.requires_grad != member.requires_grad:
                parameter.requires_grad_(member.requires_grad)
            for module, name in member.places:
                module._parameters[name] = parameter
        self.is_installed = True

    def remove(self) -> None:
        """Put the placeholders back and free the weights."""
        self.follow_requires_grad()
        for member in self.members:
            for module, name in member.places:
                module._parameters[name] = member.placeholder
        self.is_installed = False
        self.modules_run.clear()
        self.weights.free()

    # ---------------------------------------------------------------------- forwards, their graphs

    def has_run(self, module: nn.Module) -> bool:
        """This module ran; whether all of them have since the unit was pulled."""
        self.modules_run.add(module)
        return len(self.modules_run) == len(self.modules)

    def keep(self) -> bool:
        """Its weights stay until its backward; True if they did not in this step."""
        was_kept, self.is_kept = self.is_kept, True
        return not was_kept

    def may_go(self, *, retained: bool) -> bool:
        """True if backward needs its weights no more; `retained`: its graphs are kept."""
        is_over = not self.is_kept or (self.calls == 0 and not retained)
        return is_over and not self.open_calls and self.reshard_after_backward

    # ---------------------------------------------------------------------- gradients

    def begin_backward(self) -> None:
        """Nothing of this backward was pushed, and its freezing counts, on ranks without a forward
        too."""
        self.was_pushed = False
        self.follow_requires_grad()

    def run_hooks(self) -> None:
        """Call the script's hooks: the gradients of this backward are complete."""
        for member, parameter in zip(self.members, self.weights.parameters, strict=True):
            if member.placeholder.luwu_hooks and parameter.grad is not None:
                member.placeholder.run_hooks(parameter)

    def take_gradients(self) -> list[torch.Tensor | None]:
        """Take what backward left, and what was kept before it, to be pushed."""
        self.was_pushed = True
        gradients, self.kept = self.gradients(), []
        self.with_gradient.update([i for i, each in enumerate(gradients) if each is not None])
        return gradients

    def drop_kept(self, ids: Container[int] | None = None) -> None:
        """Forget what was kept, of the parameters with these ids; None: of all."""
        if ids is None or not self.kept:
            self.kept = []
            return
        pairs = zip(self.members, self.kept, strict=True)
        self.kept = [None if id(member.placeholder) in ids else kept for member, kept in pairs]

    def gradients(self) -> list[torch.Tensor | None]:
        """Gradients that backward left, in order of members, with those kept before it."""
        left = [parameter.grad for parameter in self.weights.parameters]
        return [_sum(*pair) for pair in zip(self.kept, left, strict=True)] if self.kept else left

    @property
    def has_gradient(self) -> bool:
        """True if backward left anything that is not kept yet."""
        return any([parameter.grad is not None for parameter in self.weights.parameters])

    def keep_gradients(self) -> None:
        """Add what backward left to what was kept: the backward is not pushed."""
        self.kept = self.gradients()
        for index, gradient in enumerate(self.kept):
            if gradient is not None and gradient.dtype != torch.float32:
                self.kept[index] = gradient.float()

    def drop_gradients(self) -> None:
        """Forget what backward left."""
        for parameter in self.weights.parameters:
            parameter.grad = None

    def end_step(self) -> None:
        """Forget what happened in the step."""
        self.uses = 0
        self.was_pushed = False
        self.calls = self.hidden_calls = 0
        self.is_kept = False
        self.open_calls.clear()
        self.current.clear()
        self.with_gradient.clear()
        self.kept = []

    def follow_requires_grad(self) -> None:
        """Take over what the script froze or thawed since the last look.

        It changes what it finds in the modules: a placeholder, or an installed parameter. So the
        one of the two that differs from what is known is the newer one.
        """
        with torch._C.DisableTorchFunctionSubclass():  # else asking a placeholder takes 2 us
            for member, parameter in zip(self.members, self.weights.parameters, strict=True):
                known, placeholder = member.requires_grad, member.placeholder
                is_changed = placeholder.requires_grad != known
                if self.is_installed:
                    is_changed = is_changed or parameter.requires_grad != known
                if is_changed:
                    member.requires_grad = not known
                    placeholder.requires_grad_(not known)
                    if self.is_installed:
                        parameter.requires_grad_(not known)

    def check_room(self) -> None:
        """Raises ConfigError if a parameter is to be trained whose state has no room for it."""
        for member in self.members:
            if member.requires_grad and not member.trainable:
                name = member.placeholder.luwu_name
                raise ConfigError(
                    f"parameter {name}: requires_grad was changed to True, but when the optimizer "
                    "was made it required no gradient and was in none of the optimizer's groups, "
                    "so the state has no room for its moments; give the optimizer all parameters "
                    "that are trained at any time (a frozen one is left alone until it is thawed)"
                )

    def check_unchanged(self) -> None:
        """Make sure that the modules are those of the layout. Raises ConfigError before a pull."""
        if replaced := self._replaced([member.placeholder for member in self.members]):
            raise ConfigError(
                f"{replaced} was replaced after the optimizer was made; change the model before "
                "luwu.fully_shard"
            )

    def check_unwritten(self) -> None:
        """Make sure that the script left the weights alone. Raises LuwuError before they go."""
        if self.weights.was_written():
            raise LuwuError(f"unit {self.name}: a weight was changed in place; {WRITTEN}")
        if replaced := self._replaced(self.weights.parameters):
            raise LuwuError(f"{replaced} was replaced between its pull and its free; {WRITTEN}")

    def _replaced(self, expected: Iterable[nn.Parameter]) -> str:
        """The first parameter for which a module holds another than expected, if there is one."""
        for member, parameter in zip(self.members, expected, strict=True):
            for module, name in member.places:
                if module._parameters.get(name) is not parameter:
                    return f"parameter {member.placeholder.luwu_name} of {class_name(module)}"
        return ""


def _sum(kept: torch.Tensor | None, left: torch.Tensor | None) -> torch.Tensor | None:
    """In float32, in the order of the backwards, as the node adds them."""
    if kept is None or left is None:
        return left if kept is None else kept
    return torch.add(kept, left)
