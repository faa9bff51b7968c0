"""The units of a job, found in a model that only reads: by names, as the description has them.

    away   the modules hold `AwayParameter`s, the storage has no bytes
    here   the modules hold parameters that are views of the storage (`weights.py`)

A model fits if it has the job's parameters, no other ones, and the modules that are its units. The
wrappers of torch.compile and of activation checkpoints do not count in names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from luwu.base.address_range import Memory
from luwu.base.errors import ConfigError, LuwuError
from luwu.layout import Layout, Parameter
from luwu.nic.reader import FieldRead
from luwu.training.base.names import dtype_name, is_sharded, plain_name
from luwu.training.devices.weights import ByteCount, UnitWeights
from luwu.training.units.placeholder import StandIn, become, without_weak_references
from luwu.wire.averages import AVERAGE, stored_field
from luwu.wire.description import Description

_DIFFERENCES_SHOWN_MAX = 6
Place = tuple[nn.Module, str]
"""Where a parameter is registered."""


class AwayParameter(StandIn):
    """A stand-in for a parameter that is not here: shape and dtype, no storage."""

    @staticmethod
    def __new__(cls, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> AwayParameter:
        """Stand in for this parameter."""
        self: AwayParameter = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=dtype, device=torch.device("cpu"), requires_grad=False
        )
        self.luwu_name = name
        return self

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        pass

    @staticmethod
    def refuse(what: str, name: str) -> NoReturn:
        """The weights are in the network."""
        raise LuwuError(
            f"{what}: the weights of parameter {name} are in the network, and here only inside the "
            "forward of the module that is their unit; call that module itself, or "
            "register_forward_method of what luwu.read_from returned for another method than "
            "forward. For a state dict use luwu.get_model_state_dict in the job"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"AwayParameter({self.luwu_name}, {tuple(self.shape)}, {dtype_name(self.dtype)})"


class ReadUnit:
    """One unit of the job, in this model."""

    def __init__(
        self, layout: Layout, index: int, modules: list[nn.Module],
        places: dict[str, list[Place]], *, dtype: torch.dtype | None, live_bytes: ByteCount,
        memory: Memory, fields: Sequence[str],
    ) -> None:  # fmt: skip
        """`fields`: of each chunk, the one that is read."""
        members = [layout.parameters[i] for i in layout.units[index].parameters]
        wire_dtype: torch.dtype = getattr(torch, members[0].wire_dtype)
        self.name = layout.units[index].name
        self.index = index
        self.modules = modules
        self.dtype = dtype or wire_dtype
        """Dtype of its weights here."""
        self.casts_inputs = any(p.dtype != dtype_name(self.dtype) for p in members)
        """As workers do, whose policy chose another dtype than that of the parameters."""
        self.weights = UnitWeights(
            elems=layout.unit_elems[index],
            dtype=self.dtype,
            live_bytes=live_bytes,
            places=[
                (layout.placements[i].start, torch.Size(layout.parameters[i].shape), False)
                for i in layout.units[index].parameters
            ],
            memory=memory,
        )
        self._chunks = [(layout.chunks[i], fields[i]) for i in layout.unit_chunks[index]]
        self._places = [places[plain_name(p.name)] for p in members]
        self._away: list[nn.Parameter] = [
            AwayParameter(p.name, p.shape, self.dtype) for p in members
        ]
        self.is_here = False
        self.depth = 0
        """Calls of its modules under way."""
        self.modules_run: set[nn.Module] = set()
        """Since it came."""

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return self.weights.nbytes

    def take_parameters(self) -> None:
        """The model's own parameters become stand-ins, in the modules and wherever else they are
        held; the values they had are dropped. Raises ConfigError: see `become`."""
        with without_weak_references({module for places in self._places for module, _ in places}):
            for index, ((module, name), *_) in enumerate(self._places):
                parameter, away = module._parameters[name], self._away[index]
                assert parameter is not None
                assert isinstance(away, AwayParameter)
                become(parameter, away, "luwu.read_from")
                self._away[index] = parameter

    def enter(self) -> None:
        """A call of one of its modules begins."""
        self.depth += 1

    def leave(self, module: nn.Module) -> None:
        """A call of this module ended."""
        self.depth -= 1
        self.modules_run.add(module)

    def put_away(self) -> None:
        """The modules hold no weights."""
        self._register(self._away)

    def open(self) -> Iterator[FieldRead]:
        """Take memory; what to read into it."""
        view, itemsize = self.weights.open(), self.dtype.itemsize
        for chunk, field in self._chunks:
            into = view[chunk.start * itemsize : (chunk.start + chunk.elems) * itemsize]
            yield FieldRead(chunk.index, field, into, dtype_name(self.dtype))

    def install(self) -> None:
        """The weights have come: let the modules see them."""
        self.weights.publish()
        self._register(self.weights.parameters)
        self.is_here = True

    def remove(self) -> None:
        """Free the weights, wherever they were. Raises LuwuError if the script changed them."""
        was_here, self.is_here = self.is_here, False
        self.depth = 0
        self.modules_run.clear()
        self.put_away()
        was_written = was_here and self.weights.was_written()
        self.weights.free()
        if was_written:
            raise LuwuError(
                f"unit {self.name}: a weight was changed in place; the change would be lost, for "
                "weights that are read are freed after use. Only training changes them"
            )

    def holds(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is a view of the weights, which are about to be freed."""
        if not self.is_here or isinstance(tensor, AwayParameter):
            return False
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return False
        mine = self.weights.parameters[0].untyped_storage().data_ptr()
        return tensor.untyped_storage().data_ptr() == mine

    def _register(self, parameters: list[nn.Parameter]) -> None:
        for places, parameter in zip(self._places, parameters, strict=True):
            for module, name in places:
                module._parameters[name] = parameter


def find_units(
    model: nn.Module, job: Description, *, dtype: torch.dtype | None, live_bytes: ByteCount,
    average: bool = False,
) -> list[ReadUnit]:  # fmt: skip
    """The job's units in this model; with `average` they read the average of the weights. Raises
    ConfigError if the model does not fit, or no average is kept.

    Frozen models beside the one that the job trains are left out.
    """
    layout = job.layout
    mine = [i for i, unit in enumerate(layout.units) if not f"{unit.name}.".startswith(job.beside)]
    _check_usable(model)
    named = [(plain_name(n), m) for n, m in model.named_modules(remove_duplicate=False)]
    modules = {name: module for name, module in reversed(named)}  # the outermost of wrappers
    places: dict[str, list[Place]] = {}
    name_of: dict[int, str] = {}
    for prefix, module in named:
        for local, parameter in module._parameters.items():
            if parameter is not None:
                full = f"{prefix}.{local}" if prefix else local
                first = name_of.setdefault(id(parameter), full)
                places.setdefault(first, []).append((module, local))
    wanted = [layout.parameters[i] for index in mine for i in layout.units[index].parameters]
    problems = _parameter_problems(wanted, places, is_cast=dtype is not None)
    of_units: list[list[nn.Module]] = []
    for unit in (layout.units[index] for index in mine):
        names = ["" if n == "root" else plain_name(n) for n in unit.name.split("+")]
        of_units.append([modules[name] for name in names if name in modules])
        problems += [f"unit {unit.name}: there is no module {n}" for n in names if n not in modules]
    if problems:
        shown = "; ".join(problems[:_DIFFERENCES_SHOWN_MAX])
        more = len(problems) - _DIFFERENCES_SHOWN_MAX
        raise ConfigError(
            f"read_from: the model is not the one that the job trains: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Make it with the sizes that the job was started with"
        )
    memory = Memory()
    field = AVERAGE if average else "weight"
    fields = [stored_field(job, field, trainable=chunk.trainable) for chunk in layout.chunks]
    return [
        ReadUnit(
            layout, index, modules_of_unit, places,
            dtype=dtype, live_bytes=live_bytes, memory=memory, fields=fields,
        )
        for index, modules_of_unit in zip(mine, of_units, strict=True)
    ]  # fmt: skip


def _check_usable(model: nn.Module) -> None:
    if any(is_sharded(module) for module in model.modules()):
        raise ConfigError(
            "read_from: luwu.fully_shard was called on this model, so it trains; make another one, "
            "with torch.device('meta'), to read into"
        )
    for name, parameter in model.named_parameters():
        if isinstance(parameter, AwayParameter):
            raise ConfigError(
                "read_from: this model reads from a job already; call refresh() on the object that "
                "read_from returned, or close() it and create the model again"
            )
        if parameter.device.type not in ("cpu", "meta"):
            raise ConfigError(
                f"read_from: parameter {name} is on {parameter.device}, but weights are read into "
                "memory of the CPU; make the model with torch.device('meta')"
            )


def _parameter_problems(
    parameters: Sequence[Parameter], places: dict[str, list[Place]], *, is_cast: bool
) -> list[str]:
    expected = {plain_name(p.name): p for p in parameters}
    problems = [f"{name} is missing" for name in expected if name not in places]
    problems += [f"{name} is not in the job" for name in places if name not in expected]
    for name, wanted in expected.items():
        if name not in places:
            continue
        module, local = places[name][0]
        found = module._parameters[local]
        assert found is not None
        if tuple(found.shape) != wanted.shape:
            problems.append(f"{name} has shape {tuple(found.shape)}, expected {wanted.shape}")
        elif dtype_name(found.dtype) != wanted.dtype and not is_cast:
            problems.append(
                f"{name} is {dtype_name(found.dtype)}, expected {wanted.dtype} (or say dtype=)"
            )
    return problems
