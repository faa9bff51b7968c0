"""I5, I6: floods of strangers, readers and members: bounded work a turn, bounded memory and log."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from luwu.base.limits import (
    MALFORMED_MESSAGES_MAX,
    QUEUED_MESSAGES_MAX,
    READERS_OF_CONNECTION_MAX,
    TURN_BYTES_MAX,
    TURN_MESSAGES_MAX,
)
from luwu.testing.local import LocalCluster
from luwu.transport import CreditExceeded, PeerGone, PeerUp, ZeroMqTransport
from luwu.transport.endpoints import TcpEndpoint, parse
from luwu.wire import messages as wire
from luwu.wire.codec import encode
from luwu.wire.kinds import Role
from tests.unit.local_job import Job, Worker, check, cluster_for, every_place

FLOOD = 20_000
SWITCH = "switch"


@contextmanager
def connected(endpoint: str) -> Iterator[ZeroMqTransport]:
    """A connection of somebody who may connect and has not joined."""
    with ZeroMqTransport() as transport:
        transport.dial(SWITCH, endpoint)
        while not isinstance(transport.receive(None), PeerUp):
            pass
        yield transport


def send(transport: ZeroMqTransport, header: bytes) -> bool:
    """Send, however long that takes; False if the connection is gone."""
    while True:
        try:
            transport.send(SWITCH, header)
        except CreditExceeded:
            transport.receive(10**6)
        except PeerGone:
            return False
        else:
            while transport.receive(0) is not None:
                pass
            return True


def said(cluster: LocalCluster, kind: type[Any], **fields: Any) -> bytes:
    stamp = {
        "job": cluster.job, "epoch": 0, "step": 1, "attempt": 0, "role": Role.WORKER, "rank": 0,
        "incarnation": 1, "generation": 1,
    }  # fmt: skip
    return encode(kind(**(stamp | fields)))


def shell_of(cluster: LocalCluster) -> Any:
    return cluster.switch if cluster.spec.has_switch else cluster.node


class Log:
    """The log of a shell, without its details."""

    def __init__(self, shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[dict[str, Any]] = []
        write = shell.recorder.event

        def event(name: str, *, level: str = "INFO", **fields: Any) -> None:
            if level != "DEBUG":
                self.lines.append({"name": name, **fields})
            write(name, level=level, **fields)

        monkeypatch.setattr(shell.recorder, "event", event)


KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "pulls": (wire.Pull, {"chunk": 0, "part": 0}),
    "cancels": (wire.Cancel, {"lost": 1, "text": "x" * 900}),
    "opens": (wire.Open, {"role": Role.READER, "reader": 7}),
    "shuts": (wire.Shut, {"role": Role.READER, "reader": 7}),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@every_place
def test_a_flood_of_a_stranger_changes_nothing(
    has_switch: bool, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I6. Goal: valid messages of somebody who has not joined, as many as go, leave a run as
    it was: between two looks at the timers a bounded number of them is handled, and few are logged.
    """
    job = Job()
    message, fields = KINDS[kind]
    with cluster_for(job, tmp_path, has_switch=has_switch, transport="ipc") as cluster:
        shell = shell_of(cluster)
        log = Log(shell, monkeypatch)
        endpoint = cluster.endpoints[next(reversed(cluster.endpoints))]
        header = said(cluster, message, **fields)
        sent: list[int] = []

        def flood() -> None:
            with connected(endpoint) as transport:
                for count in range(FLOOD):
                    if not send(transport, header):
                        return
                    sent.append(count)

        stranger = threading.Thread(target=flood)
        stranger.start()
        results = cluster.run(Worker(job))
        stranger.join()
        check(cluster, job, results)
    assert len(sent) == FLOOD
    assert 0 < shell.turn_messages_max <= TURN_MESSAGES_MAX
    assert shell.turn_bytes_max <= TURN_BYTES_MAX
    assert len(log.lines) <= 100, log.lines[:3]


@every_place
def test_malformed_messages_end_their_connection(
    has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: a few lines name the connection; the rest of what it sends is dropped unread."""
    job = Job()
    with cluster_for(job, tmp_path, has_switch=has_switch, transport="ipc") as cluster:
        shell = shell_of(cluster)
        log = Log(shell, monkeypatch)
        endpoint = cluster.endpoints[next(reversed(cluster.endpoints))]
        with connected(endpoint) as transport:
            for _ in range(2000):
                send(transport, b"\xc1")
            results = cluster.run(Worker(job))
            check(cluster, job, results)
    texts = [line["text"] for line in log.lines if line["name"] == "peer.refused"]
    assert len(texts) == MALFORMED_MESSAGES_MAX
    assert "cannot be read" in texts[0]
    assert "it is heard no more" in texts[-1]


WRONG_HANDSHAKE = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x05READY\xff"


@every_place
def test_half_handshakes_are_in_the_log(
    has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: connections that end before they are a peer's are logged, not in the details, the
    first of a flood of them; the run is as it was."""
    job = Job()
    with cluster_for(job, tmp_path, has_switch=has_switch, transport="tcp") as cluster:
        log = Log(shell_of(cluster), monkeypatch)
        where = parse(cluster.endpoints[next(reversed(cluster.endpoints))])
        assert isinstance(where, TcpEndpoint)
        for _ in range(200):
            with socket.create_connection((where.host, where.port), timeout=10) as stranger:
                stranger.sendall(WRONG_HANDSHAKE)
                with suppress(ConnectionResetError):
                    while stranger.recv(1000):
                        pass
        check(cluster, job, cluster.run(Worker(job)))
    texts = [line["text"] for line in log.lines if line["name"] == "peer.refused"]
    assert f"connected to {where.address}" in texts[0]
    assert 1 < len(texts) <= len(log.lines) <= 100


def test_what_a_connection_sends_waits_at_its_sender(tmp_path: Path) -> None:
    """I5. Goal: a listener that reads nothing holds so many messages of a connection and no more.
    Method: count what the sender could not hand over to the system."""
    endpoint = f"ipc://{tmp_path}/s"
    header, payload = b"x" * 64, bytes(64 * 1024)
    with ZeroMqTransport() as listener, ZeroMqTransport() as sender:
        sender.dial(SWITCH, listener.listen(endpoint))
        up = sender.receive(None)
        assert isinstance(up, PeerUp)
        handles = []
        while True:
            try:
                handles.append(sender.send(SWITCH, header, [payload]))
            except CreditExceeded:
                before = sum(handle.done for handle in handles)
                sender.receive(200_000_000)
                if sum(handle.done for handle in handles) == before:
                    break
        done = sum(handle.done for handle in handles)
        assert done <= QUEUED_MESSAGES_MAX + 256, "the rest is buffers of the system"


def test_one_connection_has_few_readers(tmp_path: Path) -> None:
    """I5. Goal: the places for readers are not taken by one connection."""
    job = Job()
    with cluster_for(job, tmp_path) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        routes = cluster.switch.core._routes
        answers = []
        for reader in range(READERS_OF_CONNECTION_MAX + 3):
            opened = wire.Open(
                job=cluster.job, epoch=0, step=0, attempt=0, role=Role.READER, rank=0,
                incarnation=1, generation=0, reader=reader,
            )  # fmt: skip
            routes.up("p-1", opened)
        answers = cluster.switch.core._take()
        gone = [each for each in answers if isinstance(each.message, wire.Gone)]
        assert len(gone) == 3
        assert "shut one of them" in gone[0].message.text
        routes.lost("p-1")
        routes.up("p-2", opened)
        assert len(cluster.switch.core._take()) == 1
