"""An aggregator from its name: built in, or of another package that is installed here.

    float32 | shared-exponent | NAME

The name is what all ranks agree on and what the state records; only names travel, never code.
"""

from __future__ import annotations

from typing import Final

from luwu.aggregate.float32 import Float32
from luwu.aggregate.interface import Aggregator
from luwu.aggregate.shared_exponent import SharedExponent
from luwu.base.errors import ConfigError

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
