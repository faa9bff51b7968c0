"""Ranks that have joined are told which have not: the real cores, with times of the test."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.nic.core import NicCore
from luwu.protocol.actions import PARENT, Note, Send
from luwu.wire.messages import Message, Received, Role, Verb
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.membership import MISSING_EVERY_NS, MISSING_FIRST_NS
from tests.simulate.job import JOB, Job, make_layout

S = 10**9


class Network:
    """Workers that join one switch."""

    def __init__(self, children: list[int], world_size: int, **changes: Any) -> None:
        description = Job(make_layout(), world_size=world_size).description
        self._description = description.to_bytes(), description.hash
        self._world_size = world_size
        self.switch = SwitchCore(job=JOB, incarnation=9, children=children, **changes)
        self.workers: dict[str, NicCore] = {}
        self.notes: list[str] = []

    def join(self, now_ns: int, rank: int) -> None:
        core = NicCore(job=JOB, rank=rank, world_size=self._world_size, incarnation=1)
        self.workers[f"worker-{rank}"] = core
        (hello,) = core.join(now_ns, *self._description)
        assert isinstance(hello, Send)
        received = self.switch.received
        self._carry(now_ns, received(now_ns, f"worker-{rank}", hello.message, hello.payload))

    def tick(self, now_ns: int) -> list[str]:
        """Let the time pass; what workers said then."""
        self.notes.clear()
        self._carry(now_ns, self.switch.tick(now_ns))
        return self.notes

    def from_parent(self, now_ns: int, message: Message) -> list[str]:
        self.notes.clear()
        self._carry(now_ns, self.switch.received(now_ns, PARENT, message))
        return self.notes

    def _carry(self, now_ns: int, actions: list[Any]) -> None:
        for action in actions:
            for peer in action.peers if isinstance(action, Send) else ():
                if peer in self.workers:
                    for said in self.workers[peer].received(now_ns, action.message):
                        assert isinstance(said, Note)
                        fields = dict(said.fields)
                        self.notes.append(f"{said.name} {fields['rank']}: {fields['text']}")


@pytest.mark.feature("a rank that does not join")
def test_those_that_wait_are_told_which_ranks_are_missing() -> None:
    """Goal: after seconds, and not at the end of the wait; again now and then; and no more once
    all have joined."""
    network = Network([1 << rank for rank in range(4)], 4)
    network.join(0, 1)
    assert network.switch.next_tick_ns() == MISSING_FIRST_NS
    network.join(1 * S, 0)
    assert network.tick(MISSING_FIRST_NS - 1) == []
    assert network.tick(MISSING_FIRST_NS) == [
        "worker.misses 1: ranks 2-3 have not joined",
        "worker.misses 0: ranks 2-3 have not joined",
    ]
    assert network.tick(MISSING_FIRST_NS + 1) == []
    network.join(7 * S, 2)
    again_ns = MISSING_FIRST_NS + MISSING_EVERY_NS
    assert network.tick(again_ns)[0] == "worker.misses 1: ranks 3 have not joined"
    assert network.workers["worker-2"].waits_for() == "ranks 3 have not joined"
    network.join(again_ns, 3)
    assert network.tick(again_ns + MISSING_EVERY_NS) == []


def test_a_switch_of_a_tree_names_its_own_and_hands_on_what_its_parent_knows() -> None:
    """Goal: ranks below another switch are not called missing by one that cannot know."""
    leaf = Network([0b01, 0b10], 4)
    leaf.join(0, 0)
    assert leaf.tick(MISSING_FIRST_NS) == ["worker.misses 0: ranks 1 have not joined"]
    leaf.join(6 * S, 1)
    parent: dict[str, Any] = {
        "job": JOB, "epoch": 0, "step": 0, "attempt": 0, "generation": 0, "role": Role.SWITCH,
        "rank": 0, "incarnation": 3,
    }  # fmt: skip
    said = Received(**parent, index=0, part=0, verb=Verb.HELLO, contributors=0b0011)
    assert leaf.from_parent(7 * S, said) == [
        "worker.misses 0: ranks 2-3 have not joined",
        "worker.misses 1: ranks 2-3 have not joined",
    ]
