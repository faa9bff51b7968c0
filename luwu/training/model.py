"""The layout of a model: made once, when the optimizer is constructed and knows the groups.

Names are full names from the root (`roots.py`). Parameters stand in the order of
`root.named_parameters()`, a tied one under its first name; units stand in the order of
`root.named_modules()`, so the root is first, as it is in forward; models beside the trained one
come after it. A unit without parameters of its own has no place in the layout.

A parameter belongs to the lowest unit that contains every module in which it is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.layout import Layout, Parameter
from luwu.layout import Unit as LayoutUnit
from luwu.training.placeholder import Placeholder
from luwu.training.roots import Roots, find_roots
from luwu.training.unit import Member, Unit

if TYPE_CHECKING:
    from luwu.training.session import Session


COMPILED = "_orig_mod"
"""Under which name `torch.compile(module)` holds the module."""


@dataclass(frozen=True, slots=True)
class Model:
    """What `describe` found."""

    roots: Roots
    layout: Layout
    units: list[Unit]


@dataclass(frozen=True, slots=True)
class _Place:
    """One place where a parameter is registered."""

    parameter: nn.Parameter
    root: nn.Module
    name_in_root: str
    module: nn.Module
    name: str
    chain: tuple[Unit, ...]
    """The units around the module, outermost first."""


def describe(session: Session, groups: Sequence[Sequence[Placeholder]]) -> Model:
    """Lay out the session's model. Raises ConfigError if it cannot be trained as it is."""
    given = {placeholder for group in groups for placeholder in group}
    roots = find_roots(session.added_units, given)
    unit_of = {module: unit for unit in session.added_units for module in unit.modules}
    members: dict[Placeholder, Member] = {}
    owners: dict[Placeholder, list[tuple[Unit, ...]]] = {}
    for place in _places(roots, unit_of):
        if not isinstance(place.parameter, Placeholder):
            _check_ignored(session, place)
            continue
        placeholder = place.parameter
        if placeholder not in members:
            members[placeholder] = Member(placeholder)
            placeholder.luwu_name = roots.prefixes[place.root] + place.name_in_root
            placeholder.luwu_place = (place.root, place.name_in_root)
        members[placeholder].places.append((place.module, place.name))
        owners.setdefault(placeholder, []).append(place.chain)
    group_of = _groups(groups, members) if given else dict.fromkeys(members, 0)
    for placeholder, chains in owners.items():
        owner = next((u for u in reversed(chains[0]) if all(u in c for c in chains)), None)
        if owner is None:
            raise ConfigError(
                f"parameter {placeholder.luwu_name} is in two models, and so in no unit of one of "
                "them; give each a copy of its own"
            )
        owner.members.append(members[placeholder])

    _name_units(roots, unit_of)
    order = list(members)
    units = [unit for unit in _in_order(roots, unit_of) if unit.members]
    for unit in units:
        unit.wire_dtype = _wire_dtype(unit)
        unit.push_dtype = unit.policy.reduce_dtype or getattr(torch, unit.wire_dtype)
    wire_dtypes = {m.placeholder: unit.wire_dtype for unit in units for m in unit.members}
    index_of = {placeholder: index for index, placeholder in enumerate(order)}
    layout = Layout(
        parameters=tuple(
            Parameter(
                name=p.luwu_name,
                shape=tuple(p.shape),
                dtype=dtype_name(p.dtype),
                wire_dtype=wire_dtypes[p],
                trainable=p in given,
                group=group_of[p],
            )
            for p in order
        ),
        units=tuple(
            LayoutUnit(
                name=unit.name,
                parameters=tuple(sorted(index_of[m.placeholder] for m in unit.members)),
            )
            for unit in units
        ),
        chunk_bytes=session.chunk_bytes,
        node_count=session.nic.node_count,
    )
    for index, unit in enumerate(units):
        unit.index = index
        for member in unit.members:
            member.start = layout.placements[index_of[member.placeholder]].start
            member.trainable = member.placeholder in given
            member.requires_grad = member.placeholder.requires_grad
        chunks = (layout.chunks[i] for i in layout.trainable_chunks(index))
        unit.trainable_elems = sum(chunk.elems for chunk in chunks)
    for root in roots.prefixes:
        below = {unit_of[module] for module in root.modules() if module in unit_of}
        unit_of[root].below = frozenset(unit.index for unit in below)
    return Model(roots, layout, units)


def say_if_one_unit(session: Session, model: Model) -> None:
    """A model that could be cut, and is not, is in its workers as a whole whenever they compute."""
    children = [
        child for child in model.roots.main.children() if next(child.parameters(), None) is not None
    ]
    if session.rank == 0 and len(model.units) == 1 and len(children) > 1:
        session.nic.recorder.event(
            "worker.one_unit", level="WARNING", unit=model.units[0].name,
            weights=format_bytes(model.layout.unit_wire_bytes(0)),
            instead="call fully_shard on its blocks before, or luwu.fully_shard_each",
        )  # fmt: skip


def say_if_frozen(session: Session, model: Model) -> None:
    """Parameters that are frozen and in the optimizer's groups take room for their moments."""
    members = [member for unit in model.units for member in unit.members if member.trainable]
    frozen = [each.placeholder.numel() for each in members if not each.requires_grad]
    if session.rank == 0 and 2 * sum(frozen) > sum(each.placeholder.numel() for each in members):
        session.nic.recorder.event(
            "worker.frozen_in_groups", level="WARNING", parameters=len(frozen),
            elements=sum(frozen),
            instead="give the optimizer only what is trained at some time: the state keeps moments "
            "of all it is given",
        )  # fmt: skip


def fill_units(session: Session) -> None:
    """Make the units' storages; they stay empty until they are pulled."""
    assert session.layout is not None
    for unit in session.units:
        unit.make_weights(session.layout.unit_elems[unit.index], getattr(torch, unit.wire_dtype))


def push_dtypes(units: Sequence[Unit]) -> dict[str, str]:
    """What ranks must agree on where gradients travel in another dtype than weights."""
    others = [unit for unit in units if dtype_name(unit.push_dtype) != unit.wire_dtype]
    if not others:
        return {}
    return {"reduce_dtype": ", ".join(f"{u.name}: {dtype_name(u.push_dtype)}" for u in others)}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def _places(roots: Roots, unit_of: dict[nn.Module, Unit]) -> Iterator[_Place]:
    """Every place of every parameter, in the order of `named_parameters`, shared modules again."""
    for root in roots.prefixes:
        yield from _places_in(root, root, "", (), unit_of)


def _places_in(
    root: nn.Module, module: nn.Module, prefix: str, chain: tuple[Unit, ...],
    unit_of: dict[nn.Module, Unit],
) -> Iterator[_Place]:  # fmt: skip
    unit = unit_of.get(module)
    if unit is not None and unit not in chain:
        chain = (*chain, unit)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield _Place(parameter, root, prefix + name, module, name, chain)
    for name, child in module._modules.items():
        if child is not None:
            # A model is the same whether its blocks are compiled (`torch.compile(block)`) or not.
            inner = prefix if name == COMPILED else f"{prefix}{name}."
            yield from _places_in(root, child, inner, chain, unit_of)


def _check_ignored(session: Session, place: _Place) -> None:
    if id(place.parameter) not in session.ignored:
        raise ConfigError(
            f"parameter {place.name_in_root} was added after luwu.fully_shard; add it before, or "
            "name it in ignored_params"
        )


def _groups(
    groups: Sequence[Sequence[Placeholder]], members: dict[Placeholder, Member]
) -> dict[Placeholder, int]:
    group_of: dict[Placeholder, int] = {}
    for index, group in enumerate(groups):
        for placeholder in group:
            if placeholder not in members:
                raise ConfigError(
                    f"group {index} of the optimizer has a parameter of shape "
                    f"{tuple(placeholder.shape)} that is not part of the model any more"
                )
            group_of[placeholder] = index
    for placeholder in members:
        if placeholder.requires_grad and placeholder not in group_of:
            raise ConfigError(
                f"parameter {placeholder.luwu_name} requires a gradient but is in no group of the "
                "optimizer; pass it, or freeze it with requires_grad_(False)"
            )
        group_of.setdefault(placeholder, 0)
    return group_of


def _in_order(roots: Roots, unit_of: dict[nn.Module, Unit]) -> list[Unit]:
    return list(dict.fromkeys(unit_of[m] for m in roots.modules() if m in unit_of))


def _name_units(roots: Roots, unit_of: dict[nn.Module, Unit]) -> None:
    names: dict[nn.Module, str] = {}
    for root, prefix in roots.prefixes.items():
        for name, module in root.named_modules():
            parts = (part for part in f"{prefix}{name}".split(".") if part not in ("", COMPILED))
            names[module] = ".".join(parts) or "root"
    for unit in set(unit_of.values()):
        unit.name = "+".join(names[module] for module in unit.modules)


def _wire_dtype(unit: Unit) -> str:
    """The one dtype the unit is computed in. Raises ConfigError if there are several."""
    if unit.policy.param_dtype is not None:
        return dtype_name(unit.policy.param_dtype)
    found = {dtype_name(member.placeholder.dtype): member for member in unit.members}
    if len(found) > 1:
        examples = ", ".join(f"{m.placeholder.luwu_name} is {name}" for name, m in found.items())
        raise ConfigError(
            f"unit {unit.name} has parameters of several dtypes ({examples}), but travels in one; "
            "choose it with mp_policy=MixedPrecisionPolicy(param_dtype=...), call fully_shard on "
            "the modules of each dtype, or name those that are not trained in ignored_params: they "
            "stay in the worker as they are"
        )
    return next(iter(found))
