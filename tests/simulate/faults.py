"""Faults of a simulated history: frozen, printable, each with its time; a plan is a list of them.

A fault says what happens and when, in words that fit any job: `"worker 3"` is the worker with that
number, modulo how many there are. So a list of faults can be cut, and its job made smaller, and it
still means something: that is what shrinking does (`shrink.py`).

To add one: a dataclass with `strike`, a line in `KINDS` (`plan.py`), and what it needs of
`Simulation` (`history.py`). Times are in virtual milliseconds from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulate.world import Faults

if TYPE_CHECKING:
    from tests.simulate.history import Simulation


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something happens at a time."""

    at_ms: int

    def strike(self, world: Simulation) -> None:
        """Let it happen."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Lasting(Fault):
    """It is over after a while."""

    for_ms: int


@dataclass(frozen=True, kw_only=True)
class Noise(Lasting):
    """The whole network loses, repeats, delays and flips bits; what overtakes what is chance."""

    drop_percent: int = 0
    repeat_percent: int = 0
    flip_percent: int = 0
    delay_ms: int = 5

    def strike(self, world: Simulation) -> None:
        faults = Faults(
            drop_ratio=self.drop_percent / 100, repeat_ratio=self.repeat_percent / 100,
            flip_ratio=self.flip_percent / 100, delay_ns_max=self.delay_ms * 1_000_000,
        )  # fmt: skip
        world.make_noise(faults, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class Partition(Lasting):
    """Nothing passes from one process to another; two-way: nor back."""

    sender: str
    receiver: str
    two_way: bool

    def strike(self, world: Simulation) -> None:
        pairs = [(self.sender, self.receiver)]
        pairs += [(self.receiver, self.sender)] if self.two_way else []
        world.cut(pairs, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class Crash(Lasting):
    """A process is killed, and started again after a while. What it wrote stays in the cache."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.crash(self.who, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class PowerCut(Lasting):
    """The host of a node loses power: what was not flushed is old, new or torn."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.crash(self.who, self.for_ms, power_cut=True)


@dataclass(frozen=True, kw_only=True)
class Blackout(Lasting):
    """All processes lose power at once."""

    def strike(self, world: Simulation) -> None:
        world.blackout(self.for_ms)


@dataclass(frozen=True, kw_only=True)
class DieInStore(Lasting):
    """A node ends inside a call of its store, a few failpoints from now; by a power cut or not."""

    who: str
    failpoints: int
    power_cut: bool

    def strike(self, world: Simulation) -> None:
        world.die_in_store(self.who, self.failpoints, self.for_ms, power_cut=self.power_cut)


@dataclass(frozen=True, kw_only=True)
class Stall(Lasting):
    """A process does nothing for a while, then goes on."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.stall(self.who, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class Zombie(Lasting):
    """A process stalls, is taken for dead and replaced; then it goes on, and speaks."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.make_zombie(self.who, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class Reconnect(Fault):
    """The connection of a process to its parent ends, and comes back under another name."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.reconnect(self.who)


@dataclass(frozen=True, kw_only=True)
class GoBack(Lasting):
    """The state is copied; after a while all nodes are killed, and come back with the copy."""

    def strike(self, world: Simulation) -> None:
        world.go_back(self.for_ms)


@dataclass(frozen=True, kw_only=True)
class LoseNode(Lasting):
    """A node is killed, and its directory is gone; another may be started on an empty one."""

    who: str
    comes_back: bool

    def strike(self, world: Simulation) -> None:
        world.lose_node(self.who, self.for_ms, comes_back=self.comes_back)


@dataclass(frozen=True, kw_only=True)
class Cancel(Fault):
    """A worker asks for the attempt to be given up."""

    who: str

    def strike(self, world: Simulation) -> None:
        world.cancel_attempt(self.who)


@dataclass(frozen=True, kw_only=True)
class DiskFault(Lasting):
    """The device of a node does something wrong (`device.KINDS`), or is slow (`stall`)."""

    who: str
    kind: str

    def strike(self, world: Simulation) -> None:
        world.hurt_disk(self.who, self.kind, self.for_ms)


@dataclass(frozen=True, kw_only=True)
class Hostile(Fault):
    """A peer says what it should not (`hostile.py`) to a switch or a node."""

    who: str
    kind: str
    count: int

    def strike(self, world: Simulation) -> None:
        world.attack(self.who, self.kind, self.count)
