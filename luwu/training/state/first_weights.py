"""The first weights of a model: who gives them, how they are made, when they are sent.

They are made on rank 0 and streamed to the node at the first forward, one unit at a time: until
then a script may choose where they come from.

    parameters with values     uploaded as they are, and freed
    parameters on `meta`       made on the CPU for one unit, filled, uploaded, freed
    from a state dict          what it gives, whatever else would fill the parameter
    parameters of files        read on rank 0, slice by slice, uploaded, freed (`Pretrained`)

A module that directly owns parameters or buffers is filled by the function given to
`luwu.init_weights(model, fn)`, called as `fn(module)` without gradients; without one, a module on
`meta` is filled by its `reset_parameters()`. What is to be filled holds NaN before, so a parameter
that was left out is found. A module whose parameters belong to two units (a tied weight) is filled
once for each; what belongs to the other is thrown away.

Buffers stay with the worker. Those on `meta` are filled on every rank, also by `fn(module)`, which
then gets the module with scratch parameters: an `fn` that draws random numbers should seed them
from names, as `workers/gpt.py` does, not from the order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from luwu.base.dtypes import BUFFER_DTYPES, DTYPES, OF_FILES
from luwu.base.errors import ConfigError, StepAborted
from luwu.nic.shell import Nic
from luwu.tensor_files.directory import WIDENED, TensorDirectory, check_tensors
from luwu.training.base.names import class_name, persistent_buffers
from luwu.training.units.model import Model
from luwu.training.units.placeholder import Placeholder
from luwu.training.units.unit import Unit
from luwu.wire.stored import AVERAGE

Rename = Callable[[str], str | None]


class Pretrained:
    """Safetensors files with a model's first weights.

        luwu.load_pretrained(model, "llama-3", rename=lambda name: "model." + name)

    They take the place of `luwu.init_weights`; a name that `rename` maps to None is not among them,
    and is made as it would be without (adapters beside a pretrained base). Values are taken as
    float32 without rounding, whatever dtype the script registered. A run that goes on from a state
    has weights, and reads no files for them. Buffers stay with the worker, so those that a
    state_dict has are read on every rank, at the call.
    """

    def __init__(self, directory: Path, rename: Rename, model: nn.Module) -> None:
        self._directory, self._rename = directory, rename
        self._buffers = persistent_buffers(model)
        self._files: TensorDirectory | None = None

    def has(self, name: str) -> bool:
        """True if a parameter of this name is among the files."""
        return self._rename(name) is not None

    def open(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Open and check the files, for parameters of these names and shapes.

        Raises: ConfigError, StateError.
        """
        self.close()
        self._files = TensorDirectory(self._directory)
        mine = {self._rename(buffer.full_name) for buffer in self._buffers}
        wanted: dict[str, tuple[int, ...]] = {}
        for ours, shape in shapes.items():
            name = self._rename(ours)
            if name is not None and wanted.setdefault(name, shape) != shape:
                raise ConfigError(
                    f"load_pretrained: rename gives {name} for parameters of the shapes "
                    f"{wanted[name]} and {shape}; they cannot both be it"
                )
        check_tensors(
            {name: found for name, found in self._files.tensors.items() if name not in mine},
            wanted,
            place=str(self._directory),
            dtypes=WIDENED,
            owner="the model",
        )

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fill a float32 vector with a parameter's values."""
        assert self._files is not None, "opened before it is read"
        there = self._rename(name)
        assert there is not None
        self._files.read_float32(there, 0, into.numpy())

    def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def fill_buffers(self, device: torch.device) -> None:
        """Read what belongs into the model's buffers; without any, no file is opened."""
        wanted = {there: each for each in self._buffers if (there := self._rename(each.full_name))}
        if not wanted:
            return
        with TensorDirectory(self._directory) as files:
            check_tensors(
                {name: found for name, found in files.tensors.items() if name in wanted},
                {there: tuple(each.value.shape) for there, each in wanted.items()},
                place=str(self._directory),
                dtypes=tuple(DTYPES[name].in_files for name in BUFFER_DTYPES),
                owner="the model's buffers",
            )
            for there, buffer in wanted.items():
                tensor = files.tensors[there]
                values = torch.empty(tensor.shape, dtype=getattr(torch, OF_FILES[tensor.dtype]))
                octets = values.reshape(-1).view(torch.uint8).numpy()
                files.read(there, 0, np.asarray(octets).data)
                buffer.set(values, device)


Initialiser = Callable[[nn.Module], object]
"""Fills the parameters and buffers that a module owns directly."""


@dataclass(frozen=True, slots=True)
class GivenState:
    """An optimizer's state that a script brings along."""

    fields: Mapping[str, Mapping[str, torch.Tensor]]
    """State field of the optimizer -> parameter -> values, in the order of the fields."""
    updates: Mapping[str, int]
    """Parameter -> its updates so far."""
    of_whole: tuple[str, ...]
    """The fields that parameters have which are updated as a whole."""


class FirstWeights:
    """The first weights of one session's models, and what a script gave for them."""

    def __init__(self, nic: Nic, model: Model) -> None:
        self._nic, self._model = nic, model
        self.given: dict[int, torch.Tensor] = {}
        """Tensors of a state dict, by id of the placeholder."""
        self.has_state_dict = False
        """A state dict was set, on rank 0 at least."""
        self.state: GivenState | None = None
        """First state of the optimizer, if the script brings it."""
        self.initialisers: dict[nn.Module, Initialiser] = {}
        """Initialisers by the module that each was given for; later by the root around that."""
        self.files: dict[nn.Module, Pretrained] = {}
        """Files by the module that each was given for; later by the root around that."""
        self._are_to_be_sent = self.are_undecided = False
        """Undecided: received by the node, which may yet be killed before they are decided."""

    def give_state(self, state: GivenState) -> None:
        """Take this as the first state of an optimizer's parameters."""
        before = self.state
        if before is not None:
            fields = {name: {**before.fields[name], **of} for name, of in state.fields.items()}
            state = GivenState(fields, {**before.updates, **state.updates}, state.of_whole)
        self.state = state

    def laid_out(self, device: torch.device) -> None:
        """The models are complete: check that each module can be filled; make their buffers."""
        around = self._model.roots.around  # what was given for a part counts for the model
        self.initialisers = {around(module): fn for module, fn in self.initialisers.items()}
        self.files = {around(module): files for module, files in self.files.items()}
        for root, module in self._modules():
            if self._is_on_meta(module):
                self._filler(root, module)
        self._fill_buffers(device)

    def joined(self, *, is_resumed: bool) -> None:
        """The session is a member of its job; `is_resumed`: the network has weights."""
        self._are_to_be_sent = self._nic.rank == 0 and not is_resumed
        if not self._are_to_be_sent:
            self._forget()

    def load(self) -> None:
        """Rank 0 sends them, when they are needed; nothing to do if it has."""
        while self._are_to_be_sent:
            try:
                self._nic.load(self._chunks())
            except StepAborted:
                continue  # nothing was decided: at most the load is lost
            self._are_to_be_sent, self.are_undecided = False, True

    def arrived(self) -> None:
        """Weights were pulled, and only decided ones can be."""
        if self.are_undecided:
            self.are_undecided = False
            self._forget()

    def lost(self) -> None:
        """An attempt was aborted: if the network has no weights, they are needed again."""
        if self.are_undecided and not self._nic.is_loaded:
            self._are_to_be_sent, self.are_undecided = True, False

    def _forget(self) -> None:
        """The weights are in the network: they need not be here."""
        self.given, self.state = {}, None
        for placeholder in self._model.placeholders:
            placeholder.luwu_value = None

    # ---------------------------------------------------------------------- how they are made

    def _chunks(self) -> Iterator[tuple[int, memoryview]]:
        """(chunk, payload of Load) of the whole model; at most one unit is made at a time."""
        layout, given = self._model.layout, self.state
        places = [(*each.luwu_place, tuple(each.shape)) for each in self._model.placeholders]
        for root, files in self.files.items():
            files.open({name: shape for place, name, shape in places if place is root})
        for unit in self._model.units:
            flat = self._values(unit, layout.unit_elems[unit.index]).numpy()
            fields = {} if given is None else {
                name: _given(unit, values, flat.copy() if name == AVERAGE else np.zeros_like(flat))
                for name, values in given.fields.items()
            }  # fmt: skip
            for index in layout.unit_chunks[unit.index]:
                chunk = layout.chunks[index]
                part = slice(chunk.start, chunk.start + chunk.elems)
                if given is None or not chunk.trainable:
                    yield index, flat[part].view(np.uint8).data
                    continue
                kept = given.of_whole if chunk.form.whole else tuple(fields)
                arrays = [
                    array[part].view(np.uint8) for array in (flat, *(fields[name] for name in kept))
                ]
                names = [layout.parameters[each.parameter].name for each in layout.segments(index)]
                updates = np.array([given.updates.get(name, 0) for name in names], np.int64)
                yield index, np.concatenate([*arrays, updates.view(np.uint8)]).data
        for files in self.files.values():
            files.close()

    @torch.no_grad()
    def _fill_buffers(self, device: torch.device) -> None:
        """Make buffers that are on `meta`, on every rank. Raises ConfigError for one not filled."""
        for root, module in self._modules():
            on_meta = {n: b for n, b in module._buffers.items() if b is not None and b.is_meta}
            if not on_meta:
                continue
            fill = self._filler(root, module)
            for name, buffer in on_meta.items():
                module._buffers[name] = _unfilled(buffer, device)
            scratch = {
                id(p): nn.Parameter(torch.empty(p.shape, dtype=p.dtype), False)
                for p in _placeholders(module)
            }
            with _registered(module, scratch):
                fill(module)
            for name in on_meta:
                filled = module._buffers[name]
                assert filled is not None
                if filled.is_floating_point() and bool(filled.isnan().any()):
                    raise ConfigError(
                        f"buffer {name} of {class_name(module)} was not filled; the function that "
                        "fills the model (as given to luwu.init_weights) must fill buffers too"
                    )

    @torch.no_grad()
    def _values(self, unit: Unit, elems: int) -> torch.Tensor:
        """The unit's flat vector in float32, padded with zeros."""
        flat = torch.zeros(elems, dtype=torch.float32)  # whatever the default is
        made: dict[int, nn.Parameter] = {}
        for member in unit.members:
            placeholder, place = member.placeholder, member.place_in(flat)
            given, value = self.given.get(id(placeholder)), placeholder.luwu_value
            assert value is not None
            if given is not None:
                place.copy_(given)
            elif (files := self._files_of(placeholder)) is not None:
                files.read(placeholder.luwu_place[1], place.view(-1))
            elif not value.is_meta:
                place.copy_(value)
                if placeholder.luwu_place[0] in self.initialisers:  # it may replace these values
                    made[id(placeholder)] = nn.Parameter(place.to(placeholder.dtype), False)
            elif placeholder.dtype == torch.float32:
                made[id(placeholder)] = nn.Parameter(place.fill_(torch.nan), False)
            else:
                made[id(placeholder)] = nn.Parameter(_unfilled(value, torch.device("cpu")), False)
        self._fill(unit, made)
        for member in unit.members:
            place, parameter = member.place_in(flat), made.get(id(member.placeholder))
            if parameter is None:
                continue
            if parameter.dtype != torch.float32:  # else it is a view
                place.copy_(parameter)
            if bool(place.isnan().any()):
                raise ConfigError(
                    f"parameter {member.placeholder.luwu_name} was not filled (or with NaN); the "
                    "function given to luwu.init_weights must fill every parameter in place"
                )
        return flat

    def _fill(self, unit: Unit, made: dict[int, nn.Parameter]) -> None:
        """Let the modules fill the unit's parameters."""
        owners = {
            module for m in unit.members if id(m.placeholder) in made for module, _ in m.places
        }
        for root, module in self._modules():
            if module in owners:
                others = (p for p in _placeholders(module) if id(p) not in made)
                with _registered(module, {**{id(p): _scratch(p) for p in others}, **made}):
                    self._filler(root, module)(module)

    def _modules(self) -> Iterator[tuple[nn.Module, nn.Module]]:
        """(root, module) of every module."""
        return ((root, module) for root in self._model.roots.prefixes for module in root.modules())

    def _filler(self, root: nn.Module, module: nn.Module) -> Initialiser:
        given = self.initialisers.get(root)
        if given is not None:
            return given
        reset = getattr(type(module), "reset_parameters", None)
        if not callable(reset):
            raise ConfigError(
                f"a {class_name(module)} is on the meta device and has no reset_parameters(); "
                "call luwu.init_weights(model, fn) with a function that fills it"
            )
        return reset

    def _files_of(self, placeholder: Placeholder) -> Pretrained | None:
        """The files that the parameter is read from, if it is in files."""
        root, name = placeholder.luwu_place
        files = self.files.get(root)
        return files if files is not None and files.has(name) else None

    def _is_on_meta(self, module: nn.Module) -> bool:
        tensors = list(module._buffers.values())
        if not self.has_state_dict:
            parameters = _placeholders(module)
            tensors += [p.luwu_value for p in parameters if self._files_of(p) is None]
        return any(tensor is not None and tensor.is_meta for tensor in tensors)


F32Array = np.ndarray[Any, np.dtype[np.float32]]


@torch.no_grad()
def _given(unit: Unit, values: Mapping[str, torch.Tensor], into: F32Array) -> F32Array:
    """One field of the optimizer's state, as the unit's flat vector; what is not given stays."""
    flat = torch.from_numpy(into)
    for member in unit.members:
        name = member.placeholder.luwu_name
        if name in values:
            member.place_in(flat).copy_(values[name])
    return into


def _placeholders(module: nn.Module) -> list[Placeholder]:
    """Those that the module itself has."""
    return [p for p in module._parameters.values() if isinstance(p, Placeholder)]


def _scratch(placeholder: Placeholder) -> nn.Parameter:
    """A tensor in place of another unit's parameter, for the moment; it is not kept."""
    value = placeholder.luwu_value
    if value is None or value.is_meta:
        value = torch.empty(placeholder.shape, dtype=placeholder.dtype)
    return nn.Parameter(value.detach().cpu().clone(), False)


def _unfilled(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    empty = torch.zeros(like.shape, dtype=like.dtype, device=device)
    return empty.fill_(torch.nan) if like.is_floating_point() else empty


@contextmanager
def _registered(module: nn.Module, parameters: Mapping[int, nn.Parameter]) -> Iterator[None]:
    """The module holds these parameters in place of their placeholders."""
    before = dict(module._parameters)
    try:
        for name, placeholder in before.items():
            if id(placeholder) in parameters:
                module._parameters[name] = parameters[id(placeholder)]
        yield
    finally:
        module._parameters.update(before)
