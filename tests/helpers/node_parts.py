"""Parts of the node's core, each built alone, and their actions as the lines of `switch_parts.py`.

Payloads are strings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luwu.base.dtypes import DTYPES
from luwu.base.limits import PROTOCOL_VERSION
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from switch_emu.node.core.actions import NodeNumber, StoreFacts
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.step import GradientBudget, Steps
from tests.helpers.switch_parts import line
from tests.simulate.job import JOB, Job, make_layout

RANKS = 0b11
CHILD, CHILD_INCARNATION = "switch", 5
Triple = tuple[Callable[[], Any], Any, list[str]]
"""An event, its answer, and the actions that it adds to the outbox."""


class Parts:
    """What most parts are handed: a node with an open store and a child that has joined.

    The job has two extents, of a chunk each, and two ranks; of two nodes, each owns one.
    """

    def __init__(
        self, *, number: int = 0, count: int = 1, replicas: int = 1, version: int | None = 0,
        bytes_max: int = 10**6, **job: Any,
    ) -> None:  # fmt: skip
        layout = make_layout(units=1, frozen=False, optimizer_nodes=count)
        self.job = Job(layout, world_size=2, **job)
        self.description = self.job.description.to_bytes()
        node = NodeNumber(number=number, count=count, replicas=replicas)
        self.outbox = Outbox(job=JOB, role=Role.NODE, rank=number, incarnation=9)
        self.children = Children(self.outbox, [RANKS])
        self.children.members.join(CHILD, self.hello(), self.description)
        self.shard = Shard(node, world_size=2)
        self.shard.open(self.description)
        self.state = State(self.outbox, self.children)
        self.state.opened(
            StoreFacts(
                description=self.description, generation=1, attempt=1, epoch=0, job=JOB,
                version=version,
            )
        )  # fmt: skip
        self.budget = GradientBudget(self.outbox, self.children, bytes_max, None)
        self.steps = Steps(self.outbox, self.children, self.shard, self.budget)
        self.serving = Serving(self.outbox, self.children, self.shard, self.steps, reads_max=1)

    def hello(self, ranks: int = RANKS, **other: Any) -> wire.Hello:
        """Of the child; or of a node, by the ranks it speaks for."""
        stamp = {**self._stamp(Role.SWITCH), "attempt": 0, "generation": 0, **other}
        return wire.Hello(
            **stamp, protocol=PROTOCOL_VERSION, world_size=2, contributors=ranks, present=ranks,
            roll=0, description_hash=self.job.description.hash,
        )  # fmt: skip

    def m(self, kind: type[Any], role: Role = Role.SWITCH, **own: Any) -> Any:
        """A message of the child in the attempt that counts."""
        return kind(**{**self._stamp(role), **own})

    def push(self, extent: int, ranks: int = RANKS, **own: Any) -> tuple[str, wire.Push]:
        """The arguments of a push of these ranks: a sum, or raw from one of them."""
        raw = ranks.bit_count() == 1
        return CHILD, self.m(
            wire.Push,
            **{
                "index": extent, "part": 0, "contributors": ranks, "absent": 0, "last": True,
                "weight": float(ranks.bit_count()), "raw": raw, "dtype": "float32", **own,
            },
        )  # fmt: skip

    def nbytes(self, index: int) -> int:
        """Of an extent's gradient, or a chunk's weights."""
        return self.job.layout.chunks[index].elems * DTYPES["float32"].nbytes

    def _stamp(self, role: Role) -> dict[str, Any]:
        outbox = self.outbox
        return {
            "job": JOB, "epoch": 0, "step": outbox.step, "attempt": outbox.attempt, "role": role,
            "rank": 0, "incarnation": CHILD_INCARNATION, "generation": outbox.generation,
        }  # fmt: skip

    def check(self, *triples: Triple) -> None:
        """Each event has this answer and these actions."""
        for number, (event, answer, lines) in enumerate(triples):
            found = event()
            assert [number, found, self.lines()] == [number, answer, lines]

    def lines(self) -> list[str]:
        """The actions since the last call, as lines."""
        return [line(action) for action in self.outbox.take()]
