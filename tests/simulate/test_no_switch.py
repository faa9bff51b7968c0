"""Histories of a node with a switch of its own (`--no-switch`): O1 to O6, by seeds.

More of them: `python -m tests.simulate --no-switch --seeds N --first S`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from luwu.base.limits import PROTOCOL_VERSION
from luwu.protocol.actions import PARENT, Send
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from switch_emu.node.core.with_switch import OWN_SWITCH, NodeWithSwitch
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.aggregation import Aggregation, Held
from tests.simulate.faults import Noise
from tests.simulate.history import run_history
from tests.simulate.job import JOB, Job, make_layout
from tests.simulate.plan import History, Options, make_history
from tests.simulate.seeds import seeds
from tests.simulate.world import Payload

TENS = 20


@pytest.mark.parametrize("seed", seeds(TENS, quick=4))
def test_ten_histories_without_a_switch(seed: int) -> None:
    """O1 to O6. Goal: no plan of faults breaks what holds, and all jobs finish. A failure names its
    history: `python -m tests.simulate --no-switch --first S --seeds 1` replays it."""
    for each in range(10 * seed, 10 * (seed + 1)):
        try:
            run_history(make_history(each, own_switch=True))
        except AssertionError as exc:
            raise AssertionError(f"history {each}: {exc}") from exc


def test_a_gradient_that_the_pair_does_not_let_go_of_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O5. Goal: the end of a history finds one payload that is held for good. Method: the first
    gradient that passes between the cores gets a holder who never drops it."""
    carry, leaked = NodeWithSwitch.carry, []

    def leaking(pair: NodeWithSwitch, now_ns: int) -> list[Any]:
        send, _ = pair._waiting[0]
        if isinstance(send.message, wire.Push) and isinstance(send.payload, Payload) and not leaked:
            leaked.append(send.payload.share())
        return carry(pair, now_ns)

    monkeypatch.setattr(NodeWithSwitch, "carry", leaking)
    with pytest.raises(AssertionError, match=r"O5: node holds \d+ bytes when all is done"):
        run_history(History(0, Options(own_switch=True), ()))


@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_a_repetition_that_a_switch_does_not_let_go_of_is_found(
    monkeypatch: pytest.MonkeyPatch, has_switch: bool
) -> None:
    """O5. Goal: the same of a switch, whether it is a process or the node's own. Method: gradients
    that come again are answered and not dropped, and messages are repeated."""

    def leaking(self: Aggregation, held: Held) -> None:
        self._outbox.send(held.peer, held.receipt)

    monkeypatch.setattr(Aggregation, "_answer_repetition", leaking)
    repeats = Noise(at_ms=0, for_ms=5000, repeat_percent=20)
    who = "switch" if has_switch else "node"
    with pytest.raises(AssertionError, match=rf"O5: {who} holds \d+ bytes when all is done"):
        run_history(History(0, Options(own_switch=not has_switch), (repeats,)))


def test_what_passes_between_the_cores_waits_and_is_shared() -> None:
    """Goal: a message to the other core is not done but carried; its payload has two holders."""
    job = Job(make_layout(units=1, frozen=False), world_size=1)
    description = job.description.to_bytes()
    node = NodeCore(job=JOB, incarnation=1, ranks=1)
    pair = NodeWithSwitch(node, SwitchCore(job=JOB, incarnation=1, children=[1]))
    facts = do.StoreFacts(
        description=description, generation=1, attempt=1, epoch=0, job=JOB, version=None
    )
    assert pair.outward(node.store_opened(facts)) == []
    stamp: dict[str, Any] = {
        "job": JOB, "epoch": 0, "step": 0, "role": Role.WORKER, "rank": 0, "incarnation": 5,
    }  # fmt: skip
    hello = wire.Hello(
        **stamp, attempt=0, generation=0, protocol=PROTOCOL_VERSION, world_size=1, contributors=1,
        present=1, roll=0, description_hash=job.description.hash,
    )  # fmt: skip

    def carried() -> list[Any]:
        found = []
        while pair.is_waiting:
            found += pair.outward(pair.carry(0))
        return found

    # The Hello goes to the node, its Welcome to the switch, and one of the switch to the worker.
    assert pair.outward(pair.received(0, "worker", hello, description)) == []
    sends = [each for each in carried() if isinstance(each, Send)]
    assert [(each.peers, type(each.message)) for each in sends] == [(("worker",), wire.Welcome)]
    assert pair.is_member("worker")
    assert pair.waits_for() == "initial weights of 2 chunks from rank 0"

    payload = Payload(np.zeros(4096, np.float32))
    load = wire.Load(**stamp, attempt=1, generation=1, index=0, part=0)
    actions = pair.outward(pair.received(0, "worker", load, payload, payload.nbytes))
    assert not [each for each in actions if isinstance(each, Send) and PARENT in each.peers]
    (page,) = [each for each in carried() if isinstance(each, do.LoadPage)]
    assert page.payload is payload
    payload.drop()  # as the pipeline does, when the page is written
    assert not payload.dropped  # the switch still has it, should it have to send it again
    assert pair.outward(node.page_loaded(page)) == []
    (drop,) = [each for each in carried() if not isinstance(each, Send)]
    drop.payload.drop()
    assert payload.dropped
    assert node.children.members.peers == (OWN_SWITCH,)
