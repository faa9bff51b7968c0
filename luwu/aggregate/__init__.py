"""How gradients are added in the network, as objects: what travels, what a slot does, what is left.

    interface.py        `Aggregator`: encode at the child, combine in a slot, decode at the node
    float32.py          the gradient itself, added in rank order: the default
    shared_exponent.py  int32 below the largest exponent of each block, agreed on first

Arithmetic only, in NumPy: no socket, no clock, no torch. Workers, switches and nodes import it.

`make_aggregator` makes one from its name. The name is what all ranks agree on and what the state
records; only names travel, never code.
"""

from __future__ import annotations

from typing import Final

from luwu.aggregate.float32 import Float32
from luwu.aggregate.interface import Aggregator
from luwu.aggregate.shared_exponent import SharedExponent
from luwu.base.errors import ConfigError

__all__ = ["FLOAT32", "Aggregator", "Float32", "make_aggregator"]

FLOAT32: Final = Float32.name
BUILT_IN: Final = (Float32.name, SharedExponent.name)

INSTALLED: Final = "luwu.aggregators"
"""Group of entry points by which other packages bring aggregators (docs/aggregators.md)."""


def make_aggregator(name: str, world_size: int) -> Aggregator:
    """The aggregator of a name, for so many ranks. Raises ConfigError if there is none."""
    if name == Float32.name:
        return Float32(world_size)
    if name == SharedExponent.name:
        return SharedExponent(world_size)
    from importlib import metadata  # takes 40 ms; few jobs have such an aggregator

    for entry in metadata.entry_points(group=INSTALLED, name=name):
        try:
            made = entry.load()(world_size)
        except (ImportError, AttributeError, TypeError) as exc:
            raise ConfigError(
                f"aggregate: {name!r}: {entry.value} cannot be made here: {exc}"
            ) from exc
        if not isinstance(made, Aggregator) or made.name != name:
            raise ConfigError(
                f"aggregate: {name!r}: {entry.value} is not a luwu.aggregate.Aggregator of this"
            )
        return made
    raise ConfigError(
        f"aggregate: {name!r:.60} is not known here; there are {', '.join(BUILT_IN)}, and no "
        f"package with an entry point of that name in {INSTALLED} is installed here"
    )
