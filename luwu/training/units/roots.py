"""The models of one session: those that are trained, and frozen ones beside them.

A *root* is a unit whose module is in no other unit: `fully_shard(model)`, called after the calls on
its parts. A teacher, a reference model or another one that is trained (a critic) may stand beside
the first trained one as units of its own. Its names in the layout begin with the name of its class:
`Teacher.0.weight`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from torch import nn

from luwu.base.errors import ConfigError
from luwu.training.base.names import class_name
from luwu.training.units.placeholder import Placeholder
from luwu.training.units.unit import Unit


@dataclass(frozen=True, slots=True)
class Roots:
    """See the module."""

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
        unit.become_root()
    for unit in units:
        if unit.reshard_after_forward is None:
            unit.set_reshard_after_forward(unit is not main and reshard_after_forward is not False)
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
