"""Readers at a switch: their way through it, and optimizer nodes that all hold one version."""

from __future__ import annotations

from typing import Any

from luwu.base.limits import READERS_OF_CONNECTION_MAX
from luwu.protocol.actions import PARENT, Drop, Send
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from luwu.wire.reading import VersionFacts
from switch_emu.switch.core.readers import KEEP_NS, ROUTES_MAX, ReaderRoutes
from tests.helpers.switch_parts import Handed, line, message
from tests.switch.test_lead import Bench


def facts(version: int = 3) -> bytes:
    """What a node knows of a version."""
    return VersionFacts(version=version, description=b"job").to_bytes()


class Readers(Bench):
    """A lead whose nodes stand at version 3, and readers."""

    def __init__(self, count: int = 2, replicas: int = 2) -> None:
        super().__init__(count, replicas)
        self.join(version=3)

    def asks(self, kind: type[Any], reader: int = 5, **fields: Any) -> list[str]:
        """What is sent when a reader asks for something."""
        self.routes.up("r", message(kind, role=Role.READER, reader=reader, **fields))
        found = self.lead.routed(self.outbox.take())
        return [line(each) for each in found] + self.lines()

    def reads(self, index: int, field: str = "m", **fields: Any) -> list[str]:
        return self.asks(
            wire.Read, index=index, field=field, dtype="float32", **{"step": 3, **fields}
        )

    def holds(self, node: int, version: int = 3) -> list[str]:
        """What is sent when a node holds a version."""
        return self.says(node, wire.Opened, facts(version), step=version, reader=5)

    def open(self) -> None:
        self.asks(wire.Open)
        for node in range(self.count):
            found = self.holds(node)
        assert found == [f"r: Opened step=3 reader=5 + {len(facts())} bytes"]


def test_no_version_is_opened_while_nodes_decide_the_next() -> None:
    """Goal: Open waits until all nodes say that they have decided; what a node held before is
    released. Method: a node that is slow says that it holds version 3 when 4 is decided."""
    bench = Readers()
    bench.asks(wire.Open)
    bench.holds(0)
    for node in range(2):
        bench.measure(node, step=3)
    for node in range(2):
        bench.prepare(node, version=4)
    assert bench.asks(wire.Open) == []
    decided = {"attempt": 1, "step": 3, "applied": True}
    assert bench.says(0, wire.Decided, **decided) == []
    assert bench.says(1, wire.Decided, **decided) == [
        "parent-0: Shut reader=5", "parent-0: Open reader=5", "parent-1: Open reader=5",
        "core: Decided step=3 attempt=1",
    ]  # fmt: skip
    assert bench.holds(1, version=3) == ["parent-1: Shut reader=5"]
    assert bench.says(0, wire.Gone, reader=5, text="it was shut") == []
    assert bench.says(1, wire.Gone, reader=5, text="it was shut") == []
    assert bench.holds(0, version=4) == []
    assert bench.asks(wire.Open) == ["parent-1: Open reader=5"]
    (opened,) = bench.holds(1, version=4)
    assert opened.startswith("r: Opened step=4")


def test_a_reader_goes_on_with_the_nodes_that_are_left() -> None:
    """Goal: a node that was started again holds nothing for it; when pages are held by none, it is
    told."""
    bench = Readers(3, 2)
    bench.open()
    assert bench.says(0, wire.Gone, reader=5, text="unknown") == []
    assert bench.reads(0)[0].startswith("parent-1: Read")
    found = bench.says(1, wire.Gone, reader=5, text="unknown")
    assert found[-1] == "r: Gone reader=5 text=unknown"
    assert "parent-2: Shut step=3 reader=5" in found


def test_a_node_that_no_more_places_has_is_the_answer() -> None:
    """Goal: where a node cannot hold a version for a reader, none does, and the reason is told."""
    bench = Readers()
    bench.asks(wire.Open)
    bench.holds(0)
    assert bench.says(1, wire.Gone, reader=5, text="16 readers already") == [
        "parent-0: Shut reader=5", "parent-1: Shut reader=5",
        "r: Gone reader=5 text=16 readers already",
    ]  # fmt: skip


def test_nodes_that_are_not_read_from_are_reminded() -> None:
    """Goal: a node forgets a reader that asks it nothing; one that holds another version since, as
    it was started again, is not read from."""
    bench = Readers()
    bench.open()
    bench.outbox.now_ns += KEEP_NS
    assert bench.reads(0) == [
        "parent-0: Read step=3 reader=5 field=m dtype=float32", "parent-1: Open step=3 reader=5",
    ]  # fmt: skip
    assert bench.holds(1) == []
    assert bench.holds(1, version=4) == ["parent-1: Shut step=3 reader=5"]
    assert all(bench.reads(chunk)[0].startswith("parent-0: Read") for chunk in range(4))


def test_a_switch_that_was_started_again_finds_what_a_reader_holds() -> None:
    """Goal: nodes still hold its version; it reads on if all do, and is told if one does not."""
    bench = Readers()
    assert bench.reads(0) == ["parent-0: Open step=3 reader=5", "parent-1: Open step=3 reader=5"]
    bench.holds(0)
    assert bench.holds(1)[0].startswith("r: Opened step=3")
    assert bench.reads(0)[0].startswith("parent-0: Read")
    bench = Readers()
    bench.reads(0, step=2)
    assert bench.holds(0)[-1].startswith(
        "r: Gone reader=5 text=an optimizer node was started again"
    )


def test_the_reader_that_was_silent_for_longest_is_forgotten() -> None:
    """Goal: bounded memory, whoever asks for what."""
    bench = Readers()
    for reader in range(ROUTES_MAX):
        bench.routes.up(f"r-{reader}", message(wire.Open, role=Role.READER, reader=reader))
        bench.lead.routed(bench.outbox.take())
    bench.lines()
    bench.routes.up("another", message(wire.Open, role=Role.READER, reader=1000))
    assert bench.lead.routed(bench.outbox.take()) == []
    assert bench.lines()[:2] == ["parent-0: Shut", "parent-1: Shut"]


def test_a_version_is_opened_under_the_attempt_that_counts() -> None:
    """E4. Goal: a node that is left out holds nothing: an Open that waits for it is answered when
    the others go on."""
    bench = Readers()
    bench.asks(wire.Open)
    bench.holds(0)
    bench.lose(1)
    found = bench.welcome(0, 2, step=3)
    assert any(each.startswith("r: Opened step=3") for each in found)


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
