"""Which updates a node has, and what they are called; without torch, for those who only ask.

A name is written into every state: a page goes on with the arithmetic that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from luwu.base.errors import ConfigError
from luwu.wire.averages import AVERAGE, keeps_average, without_average

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAMES: Final = {
    ("adam", ("m", "v")): "torch-fused-adam",
    ("adamw", ("m", "v")): "torch-fused-adamw",
    ("sgd", ("momentum",)): "torch-fused-sgd",
    ("sgd", ()): "torch-fused-sgd-plain",
    ("lion", ("m",)): "torch-lion",
    ("mirror", ()): "mirror",
    ("muon", ("m", "v")): "muon-f32+torch-fused-adamw",
    ("none", ()): "none",
}
"""By the optimizer's name and its own state fields; one that keeps an average too has its name at
the end."""
ELSEWHERE: Final = {"muon": "adamw"}
"""By optimizer: the update of parameters that it does not see as a whole."""
INSTALLED: Final = "luwu.updates"
"""Group of entry points by which other packages bring updates (docs/optimizers.md)."""


def kernel_name(optimizer: str, state_fields: tuple[str, ...]) -> str:
    """The name of an optimizer's kernel, whatever version. Raises ConfigError if there is none."""
    own = without_average(state_fields)
    name = NAMES.get((optimizer, own)) or installed(optimizer, own).value
    return f"{name}+{AVERAGE}" if keeps_average(state_fields) else name


def installed(optimizer: str, state_fields: tuple[str, ...]) -> EntryPoint:
    """The update that another package brings; not imported. Raises ConfigError if none does."""
    from importlib import metadata  # takes 40 ms; few jobs have such an update

    for entry in metadata.entry_points(group=INSTALLED, name=optimizer):
        return entry
    known = ", ".join(sorted({name for name, _ in NAMES}))
    raise ConfigError(
        f"optimizer {optimizer!r} with state {list(state_fields)} is not known to this node; "
        f"it has {known}, and no package with an entry point of that name in {INSTALLED} is "
        "installed here"
    )
