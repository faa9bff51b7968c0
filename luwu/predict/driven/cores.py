"""The cores that are played, and what they are started with.

Every played prediction takes its cores from a `Cores`: the project's own, unless a test puts a
changed one in their place and looks at what changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from luwu.base.retry import RetryPolicy
from luwu.nic.core import NicCore
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import StoreFacts
from switch_emu.switch.core import SwitchCore

JOB: Final = 1
NEVER: Final = RetryPolicy(first_ns=10**18, most_ns=10**18)
"""Nothing is lost here, so nothing is repeated."""
SQUARES: Final = (1.0,)
"""Squares of any gradient: steps are finite, and are applied."""
HYPER: Final = encode_hyper(StepHyper(groups=({},)))
SWITCH: Final = "switch"
"""The name by which the node knows its child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Constructors of the cores, with the arguments of their classes."""

    nic: Callable[..., NicCore] = NicCore
    switch: Callable[..., SwitchCore] = SwitchCore
    node: Callable[..., NodeCore] = NodeCore


OWN: Final = Cores()
"""The project's."""


def worker_name(rank: int) -> str:
    """The name by which the switch knows a worker."""
    return f"worker-{rank}"


def store_facts(description: Description) -> StoreFacts:
    """A store with its initial weights, opened for the first time."""
    return StoreFacts(
        description=description.to_bytes(), generation=1, attempt=1, epoch=0, job=JOB, version=0
    )
