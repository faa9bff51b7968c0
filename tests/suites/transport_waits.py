"""Waiting for what a transport receives: every wait has a deadline, and one that passes fails.

The suite and the tests of each transport wait with these; nothing here sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import AccessRefused
from luwu.transport.interface import (
    LISTENER,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerUp,
    Received,
    Transport,
)

DEADLINE_NS = 10 * 10**9
MIB = 1024 * 1024

Make = Callable[..., Transport]
Kind = TypeVar("Kind", bound=Received)


def next_of(transport: Transport, *kinds: type[Kind]) -> Kind:
    """The next thing of these kinds; a PeerFailed is passed over unless it is asked for."""
    until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
    while True:
        received = transport.receive(max(0, until_ns - SYSTEM_CLOCK.now_ns()))
        assert SYSTEM_CLOCK.now_ns() < until_ns, f"no {kinds} within {DEADLINE_NS} ns"
        if received is None:  # handles became done
            continue
        if isinstance(received, kinds):
            return received
        assert isinstance(received, PeerFailed), received
        assert not received.final, received


def up(transport: Transport) -> str:
    """Wait for a PeerUp that needs nothing of the other side; the peer's name."""
    return next_of(transport, PeerUp).peer


def meet(*transports: Transport) -> list[str]:
    """Wait for one PeerUp for each mention of a transport; the names, in order of the mentions.

    Both sides work meanwhile: a connection may need both to be up.
    """
    until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
    names: list[str | None] = [None] * len(transports)
    while None in names:
        assert SYSTEM_CLOCK.now_ns() < until_ns, f"no PeerUp within {DEADLINE_NS} ns: {names}"
        for index, transport in enumerate(transports):
            if names[index] is None:
                received = transport.receive(1_000_000)
                if isinstance(received, PeerUp):
                    names[index] = received.peer
                elif received is not None:
                    assert isinstance(received, PeerFailed), received
                    assert not received.final, received
    return [name for name in names if name is not None]


def dialling(make: Make, where: str, **options: object) -> Transport:
    """One that calls "parent" what listens there."""
    dialler = make(**options)
    dialler.dial("parent", where)
    return dialler


def pair(make: Make, endpoint: str, **options: object) -> tuple[Transport, Transport, str]:
    """A listener, a dialler that calls it "parent", and the listener's name for the dialler."""
    listener = make(**options)
    dialler = dialling(make, listener.listen(endpoint), **options)
    child, parent = meet(listener, dialler)
    assert parent == "parent"
    return listener, dialler, child


def down(transport: Transport) -> str:
    """Wait for a PeerDown; the peer's name."""
    event = next_of(transport, PeerDown)
    assert event.reason
    return event.peer


def failed(transport: Transport) -> PeerFailed:
    """Wait for a PeerFailed."""
    return next_of(transport, PeerFailed)


def message(transport: Transport) -> Delivery:
    """Wait for a message."""
    return next_of(transport, Delivery)


def until_true(condition: Callable[[], bool], *transports: Transport) -> None:
    """Let transports work until the condition holds; no message may arrive meanwhile."""
    until_ns = SYSTEM_CLOCK.now_ns() + DEADLINE_NS
    while not condition():
        assert SYSTEM_CLOCK.now_ns() < until_ns, "the condition never came true"
        for transport in transports:
            assert transport.receive(1_000_000) is None


def refused(listener: Transport) -> str:
    """Wait for a refusal; its text."""
    event = failed(listener)
    assert isinstance(event.error, AccessRefused), event
    assert (event.peer, event.final) == (LISTENER, False)
    return str(event.error)


def nobody_came(listener: Transport, wait_ns: int = 100_000_000) -> None:
    """Nothing but refusals arrives for a while."""
    until_ns = SYSTEM_CLOCK.now_ns() + wait_ns
    while SYSTEM_CLOCK.now_ns() < until_ns:
        heard = listener.receive(10_000_000)
        assert heard is None or isinstance(heard, PeerFailed), heard


def still_works(make: Make, listener: Transport, where: str) -> None:
    """Somebody with the right key gets in."""
    with dialling(make, where, name="worker-1") as friend:
        meet(listener, friend)
        friend.send("parent", b"h")
        assert message(listener).header == b"h"
    down(listener)
