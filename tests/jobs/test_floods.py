"""I5, I6: floods of strangers, readers and members: bounded work a turn, bounded memory and log."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from luwu.base.limits import (
    CONTROL_HEADER_BYTES_MAX,
    MALFORMED_MESSAGES_MAX,
    PROTOCOL_VERSION,
    QUEUED_MESSAGES_MAX,
    READERS_OF_CONNECTION_MAX,
)
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.reader import FieldRead
from luwu.nic.shell import Nic
from luwu.transport.curve import Security
from luwu.transport.interface import CreditExceeded, Delivery, PeerGone, PeerUp, Transport
from luwu.transport.zeromq import ZeroMqTransport
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.description import description_hash
from luwu.wire.messages import Role
from tests.helpers.local_job import LARGE, Job, Worker, check, cluster_for, every_place
from tests.helpers.transports import tcp_endpoint
from tests.helpers.waiting import is_soon

FLOOD = 5_000
SWITCH = "switch"


class NarrowCluster(LocalCluster):
    """One whose switch and node may have little queued for a peer."""

    def _open(self, arena_bytes: int) -> Transport:
        return ZeroMqTransport(credit_bytes=512 * 1024)


@contextmanager
def connected(endpoint: str, security: Security | None = None) -> Iterator[ZeroMqTransport]:
    """A connection of somebody who may connect and has not joined."""
    with ZeroMqTransport(security=security) as transport:
        transport.dial(SWITCH, endpoint)
        while not isinstance(heard := transport.receive(20 * 10**9), PeerUp):
            assert heard is not None, f"{endpoint} lets nobody in"
        yield transport


def queue(transport: Transport, header: bytes, buffers: Sequence[bytes] = ()) -> bool:
    """Send, however long that takes; False if the connection is gone."""
    while True:
        try:
            transport.send(SWITCH, header, buffers)
        except CreditExceeded:
            transport.receive(10**6)
        except PeerGone:
            return False
        else:
            return True


def send(transport: Transport, header: bytes, buffers: Sequence[bytes] = ()) -> bool:
    """The same; what has been answered so far is read."""
    is_sent = queue(transport, header, buffers)
    while is_sent and (heard := transport.receive(0)) is not None:
        if isinstance(heard, Delivery):
            heard.release()
    return is_sent


def said(cluster: LocalCluster, kind: type[Any], **fields: Any) -> bytes:
    stamp = {
        "job": cluster.job, "epoch": 0, "step": 1, "attempt": 0, "role": Role.WORKER, "rank": 0,
        "incarnation": 1, "generation": 1,
    }  # fmt: skip
    return encode(kind(**(stamp | fields)))


def shell_of(cluster: LocalCluster) -> Any:
    return cluster.switch if cluster.spec.has_switch else cluster.node


def entrance(cluster: LocalCluster) -> str:
    """Where workers dial."""
    return cluster.endpoints[next(reversed(cluster.endpoints))]


def train(cluster: LocalCluster, job: Job, ask: Callable[[], object]) -> None:
    """Train as plain torch does; `ask` is called when rank 0 has made all steps."""

    def work(rank: int) -> Any:
        nic = cluster.nic(rank)
        seen = Worker(job)(nic)
        if rank == 0:
            ask()
        nic.leave()
        return seen

    check(cluster, job, cluster.run_ranks(work))


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

    @property
    def refusals(self) -> list[str]:
        return [line["text"] for line in self.lines if line["name"] == "peer.refused"]


@every_place
@pytest.mark.parametrize(
    "header", [b"\xc1", bytes(CONTROL_HEADER_BYTES_MAX + 1)], ids=["unreadable", "too large"]
)
def test_malformed_messages_end_their_connection(
    header: bytes, has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: a few lines name the connection, also of what the transport drops; the rest of what
    it sends is dropped unread. A stranger's messages do not pass for progress of the job."""
    job = Job()
    with (
        cluster_for(job, tmp_path, has_switch=has_switch, transport="ipc") as cluster,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as stranger,
    ):
        shell = shell_of(cluster)
        log = Log(shell, monkeypatch)
        before_ns = shell._progress_ns
        stranger.linger, stranger.probe_router = 0, 1
        stranger.connect(entrance(cluster))
        stranger.send(said(cluster, wire.Pull, index=0, part=0))
        for _ in range(1000):
            stranger.send(header)
        assert is_soon(lambda: len(log.lines) >= MALFORMED_MESSAGES_MAX)
        assert shell._progress_ns == before_ns
        check(cluster, job, cluster.run(Worker(job)))
    assert len(log.refusals) == MALFORMED_MESSAGES_MAX
    assert "its messages are ignored from now on" in log.refusals[-1]


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
        where = tcp_endpoint(entrance(cluster))
        for _ in range(200):
            with socket.create_connection((where.host, where.port), timeout=10) as stranger:
                stranger.sendall(WRONG_HANDSHAKE)
                with suppress(ConnectionResetError):
                    while stranger.recv(1000):
                        pass
        check(cluster, job, cluster.run(Worker(job)))
    assert f"connected to {where.address}" in log.refusals[0]
    assert 1 < len(log.refusals) <= len(log.lines) <= 100


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


@every_place
def test_one_connection_has_few_readers(has_switch: bool, tmp_path: Path) -> None:
    """I5. Goal: a stranger gets the places of one connection, and an honest reader still gets in.
    Method: Opens of 30 readers on one connection, in a run that has decided all its steps."""
    job = Job()
    with cluster_for(job, tmp_path, has_switch=has_switch, transport="ipc") as cluster:
        answers: list[Any] = []

        def ask() -> None:
            with connected(entrance(cluster)) as stranger:
                for reader in range(30):
                    opened = said(cluster, wire.Open, role=Role.READER, reader=reader)
                    stranger.send(SWITCH, opened)
                while len(answers) < 30:
                    heard = stranger.receive(10**10)
                    assert isinstance(heard, Delivery), heard
                    answers.append(decode(heard.header, len(heard.buffers)))
                with cluster.reader() as honest:
                    honest.open()
                    answers.append(honest.version)

        train(cluster, job, ask)
    assert answers.pop() == job.steps
    gone = [each for each in answers if isinstance(each, wire.Gone)]
    assert len(gone) == 30 - READERS_OF_CONNECTION_MAX
    assert all("shut one of them" in each.text for each in gone)


@every_place
def test_who_does_not_read_its_answers_stops_nobody(
    has_switch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I6. Goal: answers that a stranger does not read are dropped beyond the credit of its
    connection; it is named once, and the run is as it was. Method: a reader opens a version again
    and again, by a socket that holds one message unread."""
    job = Job()
    with (
        NarrowCluster(
            world_size=job.world_size, state=tmp_path / "state", memory_budget_bytes=LARGE,
            chunk_bytes=job.layout.chunk_bytes, transport="ipc", has_switch=has_switch,
            summary=tmp_path / "summary.json",
        ) as cluster,
        zmq.Context() as context,
    ):  # fmt: skip
        log = Log(shell_of(cluster), monkeypatch)
        stranger = context.socket(zmq.DEALER)
        stranger.linger, stranger.probe_router, stranger.rcvhwm = 0, 1, 1
        stranger.connect(entrance(cluster))
        opened = said(cluster, wire.Open, role=Role.READER, reader=7)

        def ask() -> None:
            for _ in range(FLOOD):
                stranger.send(opened)
            assert is_soon(lambda: any("text" in each for each in log.lines))

        train(cluster, job, ask)
        stranger.close()
    (text,) = log.refusals
    assert "does not read" in text


def test_a_reader_may_read_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5. Goal: the limit of messages for who has not joined is none for who reads pages."""
    monkeypatch.setattr("switch_emu.process.loop.UNJOINED_MESSAGES_MAX", 50)
    job = Job()
    with cluster_for(job, tmp_path, transport="ipc") as cluster:

        def ask() -> None:
            with cluster.reader() as reader:
                reader.open()
                nbytes = job.layout.chunks[0].sum_bytes
                for _ in range(200):
                    reader.read([FieldRead(0, "weight", memoryview(bytearray(nbytes)))])

        train(cluster, job, ask)


class Greets(Worker):
    """A worker; before step 2 rank 0 has a stranger say Hello to the node as the switch."""

    def __init__(self, job: Job, cluster: LocalCluster) -> None:
        super().__init__(job)
        self._cluster = cluster

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> Any:
        if step == 2 and nic.rank == 0:
            self._pretend()
        return super()._step(nic, step, may_cancel)

    def _pretend(self) -> None:
        cluster = self._cluster
        description = cluster.node.description
        assert description is not None
        hello = said(
            cluster, wire.Hello, role=Role.SWITCH, incarnation=2**62, step=10**6, attempt=7,
            protocol=PROTOCOL_VERSION, world_size=2, contributors=0b11, present=0b11, roll=9,
            description_hash=description_hash(description.to_bytes()),
        )  # fmt: skip
        with connected(cluster.endpoints["node"]) as stranger:
            for _ in range(200):
                stranger.send(SWITCH, hello, [description.to_bytes()])
            stranger.send(SWITCH, said(cluster, wire.Pull, index=0, part=0, incarnation=2**62))
            answer = None
            while not isinstance(answer, wire.Rejoin):
                heard = stranger.receive(10**10)
                assert isinstance(heard, Delivery), heard
                answer = decode(heard.header, len(heard.buffers))
                assert isinstance(answer, wire.Refuse | wire.Rejoin)


@pytest.mark.feature("a second switch that reports missing steps")
def test_a_forged_hello_in_the_switch_name_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5, I6. Goal: without keys, who says that it is the switch, and that it knows of later steps,
    is not believed while the switch is connected: it is refused and named, and the node goes on."""
    job = Job()
    with cluster_for(job, tmp_path, transport="ipc") as cluster:
        log = Log(cluster.node, monkeypatch)
        results = cluster.run(Greets(job, cluster))
        check(cluster, job, results)
    refusals = [line for line in log.lines if line["name"] == "node.refused"]
    assert refusals
    assert "that is still connected" in refusals[0]["text"]
    assert refusals[0]["peer"].startswith("p-")
    assert len(log.lines) <= 100
