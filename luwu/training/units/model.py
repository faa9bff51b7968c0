"""The layout of a model: made once, when the optimizer is constructed and knows the groups.

Names are full names from the root. Parameters are in the order of
`root.named_parameters()`, a tied one under its first name; units are in the order of
`root.named_modules()`, so the root is first, as it is in forward; models beside the trained one
come after it. A unit without parameters of its own has no place in the layout.

A parameter belongs to the lowest unit that contains every module in which it is registered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.quantities import format_bytes
from luwu.layout import ALL_FLOAT32, Layout, Parameter, StoredForm
from luwu.layout import Unit as LayoutUnit
from luwu.nic.shell import Nic
from luwu.training.base.names import COMPILED, class_name, dtype_name
from luwu.training.units.placeholder import Placeholder
from luwu.training.units.unit import Member, Unit


@dataclass(frozen=True, slots=True)
class _Place:
    """One place where a parameter is registered."""

    parameter: nn.Parameter
    name_in_root: str
    module: nn.Module
    name: str
    chain: tuple[Unit, ...]
    """The units around the module, outermost first."""


class Model:
    """The units of a session: added by `fully_shard`, laid out when the optimizer is made."""

    def __init__(self) -> None:
        self.added: list[Unit] = []
        """Units in the order of the calls of fully_shard."""
        self.units: list[Unit] = []
        """Units with parameters, in the order of the layout."""
        self.ignored: set[int] = set()
        """Ids of parameters that the script keeps for itself."""
        self.roots: Roots
        """The models that it consists of, once the optimizer is made."""
        self.layout: Layout
        """The layout of all of them, once it is made."""

    def lay_out(
        self, groups: Sequence[Sequence[Placeholder]], stored: Sequence[StoredForm], nic: Nic
    ) -> None:
        """The optimizer is made, with these groups, which are to be stored so; `nic` has the run's
        choices.

        Raises: ConfigError if the model cannot be trained as it is.
        """
        given = {placeholder for group in groups for placeholder in group}
        roots = find_roots(self.added, given, reshard_after_forward=nic.reshard_after_forward)
        unit_of = {module: unit for unit in self.added for module in unit.modules}
        members, owners = self._find_members(roots, unit_of)
        group_of = _groups(groups, members) if given else dict.fromkeys(members, 0)
        _give_to_units(members, owners)
        _name_units(roots, unit_of)
        units = [unit for unit in _in_order(roots, unit_of) if unit.members]
        for unit in units:
            unit.choose_wire_dtype(_wire_dtype(unit))
        stored_as = {
            placeholder: stored[group_of[placeholder]].of(
                placeholder.numel(),
                is_embedding=any(
                    isinstance(module, nn.Embedding | nn.EmbeddingBag)
                    for module, _ in members[placeholder].places
                ),
            )
            for placeholder in given
        }
        layout = _layout(units, list(members), group_of, stored_as, nic)
        for index, unit in enumerate(units):
            unit.take_place(index, layout, given)
        for root in roots.prefixes:
            below = {unit_of[module] for module in root.modules() if module in unit_of}
            unit_of[root].below = frozenset(unit.index for unit in below)
        self.roots, self.layout, self.units = roots, layout, units

    @property
    def placeholders(self) -> Iterator[Placeholder]:
        """The placeholders of all units."""
        return (member.placeholder for unit in self.units for member in unit.members)

    @property
    def placeholders_added(self) -> Iterator[Placeholder]:
        """Those of all calls of fully_shard; of a unit within a unit twice."""
        return (
            parameter
            for unit in self.added
            for module in unit.modules
            for parameter in module.parameters()
            if isinstance(parameter, Placeholder)
        )

    @property
    def is_empty(self) -> bool:
        """True if no unit has a parameter."""
        return next(self.placeholders_added, None) is None

    @property
    def unit_bytes_max(self) -> int:
        """Bytes of the largest unit's weights."""
        return max((unit.nbytes for unit in self.units), default=0)

    def name_frozen(self) -> str:
        """A digest of the names that are frozen now, although their state is kept; part of what
        all ranks must state alike of a step."""
        names = [
            member.placeholder.luwu_name
            for unit in self.units
            for member in unit.members
            if member.trainable and not member.requires_grad
        ]
        return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] if names else ""

    def _find_members(
        self, roots: Roots, unit_of: dict[nn.Module, Unit]
    ) -> tuple[dict[Placeholder, Member], dict[Placeholder, list[tuple[Unit, ...]]]]:
        """Every parameter, in the order of the layout, and the units around each of its places."""
        members: dict[Placeholder, Member] = {}
        owners: dict[Placeholder, list[tuple[Unit, ...]]] = {}
        all_places = ((root, place) for root in roots.prefixes for place in _places(root, unit_of))
        for root, place in all_places:
            if not isinstance(place.parameter, Placeholder):
                if id(place.parameter) not in self.ignored:
                    raise ConfigError(
                        f"parameter {place.name_in_root} was added after luwu.fully_shard; add it "
                        "before, or name it in ignored_params"
                    )
                continue
            placeholder = place.parameter
            if placeholder not in members:
                members[placeholder] = Member(placeholder)
                placeholder.luwu_name = roots.prefixes[root] + place.name_in_root
                placeholder.luwu_place = (root, place.name_in_root)
            members[placeholder].places.append((place.module, place.name))
            owners.setdefault(placeholder, []).append(place.chain)
        return members, owners


def report(recorder: Recorder, model: Model) -> None:
    """Report a model that could be cut and is not, so that all of it is here whenever a worker
    computes; and parameters that are frozen and in the optimizer's groups: the state has moments of
    them."""
    children = [
        child for child in model.roots.main.children() if next(child.parameters(), None) is not None
    ]
    if len(model.units) == 1 and len(children) > 1:
        recorder.event(
            "worker.one_unit", level="WARNING", unit=model.units[0].name,
            weights=format_bytes(model.layout.unit_wire_bytes(0)),
            instead="call fully_shard on its blocks before, or luwu.fully_shard_each",
        )  # fmt: skip
    members = [member for unit in model.units for member in unit.members if member.trainable]
    frozen = [each.placeholder.numel() for each in members if not each.requires_grad]
    if 2 * sum(frozen) > sum(each.placeholder.numel() for each in members):
        recorder.event(
            "worker.frozen_in_groups", level="WARNING", parameters=len(frozen),
            elements=sum(frozen),
            instead="give the optimizer only what is trained at some time: the state keeps moments "
            "of all it is given",
        )  # fmt: skip


def _give_to_units(
    members: dict[Placeholder, Member], owners: dict[Placeholder, list[tuple[Unit, ...]]]
) -> None:
    """Each parameter to the lowest unit around all of its places. Raises ConfigError."""
    for placeholder, chains in owners.items():
        owner = next((u for u in reversed(chains[0]) if all(u in c for c in chains)), None)
        if owner is None:
            raise ConfigError(
                f"parameter {placeholder.luwu_name} is in two models, and so in no unit of one of "
                "them; give each a copy of its own"
            )
        owner.members.append(members[placeholder])


def _layout(
    units: Sequence[Unit], order: Sequence[Placeholder], group_of: dict[Placeholder, int],
    given: Mapping[Placeholder, StoredForm], nic: Nic,
) -> Layout:  # fmt: skip
    wire_dtypes = {m.placeholder: unit.wire_dtype for unit in units for m in unit.members}
    index_of = {placeholder: index for index, placeholder in enumerate(order)}
    return Layout(
        parameters=tuple(
            Parameter(
                name=p.luwu_name,
                shape=tuple(p.shape),
                dtype=dtype_name(p.dtype),
                wire_dtype=wire_dtypes[p],
                trainable=p in given,
                group=group_of[p],
                form=given.get(p, ALL_FLOAT32),
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
        chunk_bytes=nic.chunk_bytes,
        extent_chunks=nic.extent_chunks,
        optimizer_nodes=nic.optimizer_nodes,
    )


def _places(
    module: nn.Module, unit_of: dict[nn.Module, Unit], prefix: str = "",
    chain: tuple[Unit, ...] = (),
) -> Iterator[_Place]:  # fmt: skip
    """Every place of every parameter, in the order of `named_parameters`, shared modules again."""
    unit = unit_of.get(module)
    if unit is not None and unit not in chain:
        chain = (*chain, unit)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield _Place(parameter, prefix + name, module, name, chain)
    for name, child in module._modules.items():
        if child is not None:
            # A model is the same whether its blocks are compiled (`torch.compile(block)`) or not.
            inner = prefix if name == COMPILED else f"{prefix}{name}."
            yield from _places(child, unit_of, inner, chain)


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
                "optimizer, nor of another one; make the optimizer with it, or freeze it with "
                "requires_grad_(False) before"
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


@dataclass(frozen=True, slots=True)
class Roots:
    """The models of one session: those that are trained, and frozen ones beside them.

    A *root* is a unit whose module is in no other unit: `fully_shard(model)`, called after the
    calls on its parts. A teacher, a reference model or another one that is trained (a critic) may
    be beside the first trained one as units of its own. Its names in the layout begin with the
    name of its class: `Teacher.0.weight`.
    """

    main: nn.Module
    """The first one that is trained; the last one if none is."""
    prefixes: dict[nn.Module, str]
    """Prefix of the names of each; empty for `main`, the first."""

    def modules(self) -> Iterator[nn.Module]:
        """All modules of all of them."""
        return (module for root in self.prefixes for module in root.modules())

    def around(self, module: nn.Module) -> nn.Module:
        """The root that a module is in; `main` if it is in none."""
        found = (root for root in self.prefixes if any(each is module for each in root.modules()))
        return next(found, self.main)


def find_roots(
    units: list[Unit], given: Container[Placeholder], *, reshard_after_forward: bool | None
) -> Roots:
    """The roots among the units, which learn whether they are one.

    `given`: what the optimizer was given; `reshard_after_forward`: the run's choice where the
    script leaves it open. Raises: ConfigError if a unit that is trained is in none.
    """
    if not units:
        raise ConfigError("call luwu.fully_shard(model) before the optimizer is made")
    inside = {
        inner
        for unit in units
        for module in unit.modules
        for inner in module.modules()
        if inner is not module
    }
    outermost = [unit for unit in units if not inside.issuperset(unit.modules)]
    trained = [unit for unit in outermost if _is_trained(unit, given)]
    kinds = {class_name(unit.modules[0]) for unit in trained}
    if len(trained) > len(kinds) or any(len(unit.modules) > 1 for unit in outermost):
        raise ConfigError(
            "no unit contains the whole model; call luwu.fully_shard(model) on the model itself, "
            "after the calls on its parts. (A second model may have units of its own if it is "
            "frozen with requires_grad_(False), or has another class than the first)"
        )
    main = trained[0] if trained else outermost[-1]
    for unit in outermost:
        unit.is_root = True
    for unit in units:
        if unit.reshard_after_forward is None:
            unit.reshard_after_forward = unit is not main and reshard_after_forward is not False
    prefixes = {main.modules[0]: ""}
    for unit in outermost:
        if unit is not main:
            prefixes[unit.modules[0]] = _free_prefix(unit.modules[0], main.modules[0], prefixes)
    return Roots(main.modules[0], prefixes)


def _is_trained(unit: Unit, given: Container[Placeholder]) -> bool:
    parameters = (each for module in unit.modules for each in module.parameters())
    return any(
        isinstance(each, Placeholder) and (each.requires_grad or each in given)
        for each in parameters
    )


def _free_prefix(root: nn.Module, main: nn.Module, taken: dict[nn.Module, str]) -> str:
    """The name of its class, with a number where that is taken."""
    name, number = class_name(root), 1
    used = {*taken.values(), *(f"{child}." for child, _ in main.named_children())}
    while f"{name}." in used:
        number += 1
        name = f"{class_name(root)}_{number}"
    return f"{name}."
