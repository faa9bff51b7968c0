"""The plan of faults and their times: a pure function of a seed and a wish.

A fault is SIGKILL to a process (`kill`), or SIGSTOP and, some time later, SIGCONT (`stall`). Its
moment is a time since the chaos began, or some time after a decided step. Drawn faults have one
window each: with `every` 30 s the third is somewhere between 60 s and 90 s; with `every` 8 steps
between step 16 and 23, and up to 100 ms after it, so that it meets any place within a step.

A process is named as in `processes.json`: `node`, `node-1`, `switch`, `switch-left`, and `worker-3`
for rank 3. `worker`, `switch` and `node` alone mean any of them, drawn for each fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.seeds import derive
from luwu.base.suggestion import suggestion

KINDS: Final = ("kill", "stall")
WITHIN_A_STEP_NS: Final = 100_000_000
STALL_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The time of a fault."""

    step: int | None = None
    """After so many more decided steps than there were at the beginning; None: after a time."""
    delay_ns: int
    """From that step, or from the beginning."""

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.delay_ns / 1e9:.1f} s after the beginning"
        return f"{self.delay_ns / 1e6:.0f} ms after {self.step} more steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    kind: str
    """`kill` or `stall`."""
    process: str
    moment: Moment
    stall_ns: int = 0
    """How long a stall lasts."""

    def __str__(self) -> str:
        what = f" for {self.stall_ns / 1e9:g} s" if self.kind == "stall" else ""
        return f"{self.kind} {self.process}{what}, {self.moment}"

    @property
    def machine(self) -> str:
        """`switch` of `switch-left`."""
        return self.process.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The processes of a job, by name."""

    workers: tuple[str, ...]
    switches: tuple[str, ...]
    nodes: tuple[str, ...]

    def of(self, name: str) -> tuple[str, ...]:
        """Those that a name may mean. Raises ConfigError."""
        groups = {"worker": self.workers, "switch": self.switches, "node": self.nodes}
        if groups.get(name):
            return groups[name]
        known = [each for group in groups.values() for each in group]
        if name not in known:
            raise ConfigError(
                f"no process {name!r} in this job{suggestion(name, known)}; there are "
                f"{', '.join(known)}, and {', '.join(key for key in groups if groups[key])} for "
                "any of them"
            )
        return (name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A wish for faults, from which `draw` makes a plan."""

    kill: tuple[str, ...] = ()
    stall: tuple[str, ...] = ()
    count: int = 5
    every_ns: int | None = None
    every_steps: int | None = None
    stall_ns: int = STALL_NS
    seed: int = 0


def draw(wish: Wish, cast: Cast) -> tuple[Fault, ...]:
    """The faults of a seed, in their order. Raises ConfigError."""
    choices = [("kill", name) for name in wish.kill] + [("stall", name) for name in wish.stall]
    if not choices:
        raise ConfigError("no fault is asked for; give --kill or --stall, such as --kill node")
    for _, name in choices:
        cast.of(name)  # a name that nobody has is refused whether or not it is drawn
    if (wish.every_ns is None) == (wish.every_steps is None):
        raise ConfigError("give the frequency: either --every TIME or --every-steps N")
    random = Random(derive(wish.seed, "chaos"))
    faults = []
    for index in range(wish.count):
        kind, name = random.choice(choices)
        faults.append(
            Fault(
                kind=kind,
                process=random.choice(cast.of(name)),
                moment=_moment(random, index, wish),
                stall_ns=wish.stall_ns if kind == "stall" else 0,
            )
        )
    return tuple(faults)


def _moment(random: Random, index: int, wish: Wish) -> Moment:
    if wish.every_steps is not None:
        step = index * wish.every_steps + random.randrange(wish.every_steps)
        return Moment(step=step, delay_ns=random.randrange(WITHIN_A_STEP_NS))
    assert wish.every_ns is not None
    return Moment(delay_ns=index * wish.every_ns + random.randrange(wish.every_ns))


def plan_lines(faults: Sequence[Fault]) -> list[str]:
    """The plan for people."""
    return [f"fault {number} of {len(faults)}: {each}" for number, each in enumerate(faults, 1)]
