"""The way of readers through a switch, built alone."""

from __future__ import annotations

from luwu.base.limits import READERS_OF_CONNECTION_MAX
from luwu.protocol.actions import PARENT, Drop, Send
from luwu.wire import messages as wire
from switch_emu.switch.core.readers import ROUTES_MAX, ReaderRoutes
from tests.helpers.switch_parts import Handed, message


def test_routes_lead_back_to_who_asked() -> None:
    """Goal: answers go to the connection by which the reader last asked; others are dropped."""
    outbox = Handed(joined=False).outbox
    routes = ReaderRoutes(outbox)
    for number in range(ROUTES_MAX + 1):
        routes.up(f"p-{number}", message(wire.Open, reader=number))
    assert all(send.peers == (PARENT,) for send in outbox.take())
    content = message(wire.Content, reader=1, field="m", dtype="float32")
    routes.down(content, "payload")
    assert outbox.take() == [Send(("p-1",), content, "payload"), Drop("payload")]
    forgotten = message(wire.Content, reader=0, field="m", dtype="float32")
    routes.down(forgotten, "payload")
    assert outbox.take() == [Drop("payload")]


def test_no_request_takes_the_places_of_others() -> None:
    """Goal: one connection has few readers whatever it asks for, and the ways back to others stay.
    Method: a connection opens all it may, then reads in the names of a hundred more."""
    outbox = Handed(joined=False).outbox
    routes = ReaderRoutes(outbox)
    routes.up("p-1", message(wire.Open, reader=1000))
    for number in range(READERS_OF_CONNECTION_MAX):
        routes.up("p-2", message(wire.Open, reader=number))
    outbox.take()
    for number in range(100):
        routes.up("p-2", message(wire.Read, reader=100 + number, field="m", dtype="float32"))
    routes.up("p-2", message(wire.Open, reader=300))
    refused = outbox.take()
    assert all(send.peers == ("p-2",) for send in refused)
    assert all("shut one of them" in send.message.text for send in refused)
    content = message(wire.Content, reader=1000, field="m", dtype="float32")
    routes.down(content, "payload")
    assert outbox.take() == [Send(("p-1",), content, "payload"), Drop("payload")]
