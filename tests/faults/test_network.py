"""Kinds 12 to 18: what a network does to messages and connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.wire import messages as wire
from tests.faults.scenario import BOTH, STORED, aborts, made_by, run_plan, run_scenario, says
from tests.simulate.faults import Noise, Partition, Reconnect
from tests.simulate.plan import HEALED_MS


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param({"drop_percent": 1}, marks=pytest.mark.faults(12)),
        pytest.param({"drop_percent": 10}, marks=pytest.mark.faults(12)),
        pytest.param({"drop_percent": 40}, marks=pytest.mark.faults(12)),
        pytest.param({"repeat_percent": 90}, marks=pytest.mark.faults(13)),
        pytest.param({"delay_ms": 200}, marks=pytest.mark.faults(14)),
    ],
    ids=str,
)
def test_messages_are_lost_repeated_or_overtaken(kind: dict[str, int]) -> None:
    """I3, I4. Goal: what is lost is said again until it is answered, what comes twice counts once,
    and the order of arrival changes no bit. Method: each takes up to 200 ms, which is the time of
    several steps, so what is late is of another step."""
    assert made_by(run_plan(Noise(at_ms=0, for_ms=HEALED_MS, **kind))) == BOTH


@pytest.mark.faults(15)
def test_delays_vary() -> None:
    """I6. Goal: a network that is quick and then slow is no reason to give anything up."""
    changes = [
        Noise(at_ms=40 * number, for_ms=30, delay_ms=delay_ms)
        for number, delay_ms in enumerate((1, 150, 5, 80, 1, 150, 30, 150))
    ]
    simulation = run_plan(*changes)
    assert made_by(simulation) == BOTH
    assert aborts(simulation) == 0


@pytest.mark.faults(16)
@pytest.mark.parametrize("two_way", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize(
    ("sender", "receiver"),
    [("worker 0", "switch 0"), ("switch 0", "worker 0"), ("switch 0", "node 0"),
     ("node 0", "switch 0")],
)  # fmt: skip
def test_nothing_passes(sender: str, receiver: str, two_way: bool) -> None:
    """I6. Goal: whoever cannot be heard is waited for; the job goes on when the cut is over."""
    cut = Partition(at_ms=0, for_ms=1000, sender=sender, receiver=receiver, two_way=two_way)
    simulation = run_scenario(says("worker-0", wire.Push, 2), cut)
    assert made_by(simulation) == BOTH
    assert simulation.world.now_ns > 10**9


@pytest.mark.faults(17)
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
@pytest.mark.parametrize("kind", [wire.Pull, wire.Push, wire.Commit], ids=lambda k: k.__name__)
@pytest.mark.parametrize("who", ["worker 1", "switch 0"])
def test_connections_are_reset(who: str, kind: type[wire.Message], optimizer_nodes: int) -> None:
    """I1, I3, I6. Goal: a connection that comes back under another name is the same member: nothing
    is lost, and nothing begun again. (Half open ones are found by heartbeats of the transport:
    `test_a_frozen_peer_is_lost`.)"""
    options = replace(STORED, optimizer_nodes=optimizer_nodes)
    simulation = run_scenario(says("worker-1", kind, 2), Reconnect(at_ms=0, who=who), options)
    assert made_by(simulation) == BOTH
    assert aborts(simulation) == 0


@pytest.mark.faults(18)
def test_bits_of_messages_flip() -> None:
    """I3. Goal: what arrives otherwise than it was sent counts as lost. (Every bit of every frame
    that a transport carries in mid-run: the checksum of TCP, and the seal of CURVE.)"""
    noise = Noise(at_ms=0, for_ms=HEALED_MS, flip_percent=20)
    simulation = run_plan(noise)
    assert simulation.world.flipped_count > 10
    assert made_by(simulation) == BOTH
