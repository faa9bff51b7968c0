"""I6, I8: every wait says what it waits for and ends; nothing is left behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError, DeadlineError, LuwuError
from luwu.base.events import Recorder
from luwu.base.json_file import json_object
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.reader import StateReader
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.protocol.uplink import Outstanding
from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from luwu.transport.zeromq import ZeroMqTransport
from switch_emu.node.kernels.make import make_kernel
from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.local_job import KIB, Job, Worker, check, cluster_for, every_place, refusal
from tests.helpers.waiting import is_soon
from tests.light_job import make_layout


def alone(cluster: LocalCluster, ask: Callable[[Nic], object]) -> str:
    """Text of the DeadlineError of rank 0, whose partner never says anything."""
    nic = cluster.nic(0)
    with pytest.raises(DeadlineError) as caught:
        ask(nic)
    return str(caught.value)


@every_place
def test_a_wait_ends_and_says_what_for(has_switch: bool, tmp_path: Path) -> None:
    """I6. Goal: a rank that never comes ends the wait of the others, who say what they wait for
    and what to do; switch or node say which rank it is."""
    job = Job()
    with cluster_for(job, tmp_path, has_switch=has_switch, grace_s=0.2) as cluster:
        text = alone(cluster, lambda nic: nic.join(job.description))
        assert "worker 0 waited" in text
        assert "for all ranks to join (Welcome: the parent waits for all ranks)" in text
        assert "--grace" in text
        parent = cluster.switch if has_switch else cluster.node
        assert is_soon(lambda: parent.machine.waits_for() == "Hello of ranks 1")


@pytest.mark.feature("a different number of steps on one rank")
def test_a_wait_for_a_gradient_says_which(tmp_path: Path) -> None:
    """I6. Goal: the rank that stopped is named by the switch, what cannot go on by the worker that
    waits. Method: rank 1 joins, pulls nothing, pushes nothing; rank 0 commits its step and wants
    the weights of the next."""
    job = Job(update="at_step")
    release = threading.Event()

    def worker(nic: Nic) -> None:
        if nic.rank == 1:
            nic.join(job.description)
            release.wait(30)
            return
        try:
            Worker(job)(nic)
        finally:
            release.set()

    make_kernel("adamw", ("m", "v"), cache=None)  # compiled now, if never before on this machine
    with cluster_for(job, tmp_path, grace_s=4.0) as cluster:
        with pytest.raises(DeadlineError) as caught:
            cluster.run(worker)
        assert "for the pull of step 1, unit 0 (weights for the pull of step 1" in str(caught.value)
        assert "of ranks 1" in cluster.switch.machine.waits_for()


def test_nobody_at_the_other_end(tmp_path: Path) -> None:
    """I6. Goal: the address and the transport's own words are in the text."""
    transport = InProcessNetwork().transport()
    with Nic(
        transport, WorkerIdentity(job=1, rank=3, world_size=4), NicSettings(chunk_bytes=16 * KIB),
        endpoint="inproc://nowhere", connect_timeout_s=0.1,
    ) as nic:  # fmt: skip
        assert is_soon(lambda: bool(nic._mailbox.trouble))
        with pytest.raises(DeadlineError) as caught:
            nic.connect()
        text = str(caught.value)
        assert "worker 3 waited" in text
        assert "for inproc://nowhere to answer" in text
        assert "nothing listens at inproc://nowhere" in text


def test_a_closed_nic_ends_the_waits(tmp_path: Path) -> None:
    """I6, I8. Goal: a thread that waits is not left behind when its NIC is closed.
    Method: rank 0 waits for a partner that never comes; no deadline would end it here."""
    job = Job()
    failures: list[Exception] = []

    def wait(nic: Nic) -> None:
        try:
            nic.join(job.description)
        except LuwuError as exc:
            failures.append(exc)

    with cluster_for(job, tmp_path) as cluster:
        nic = cluster.nic(0)
        thread = threading.Thread(target=wait, args=(nic,), daemon=True)
        thread.start()
        nic.close()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert "worker 0" in str(failures[0])
    assert "closed" in str(failures[0])


def test_a_parent_that_comes_late_hears_at_once(tmp_path: Path) -> None:
    """Goal: what was asked before there was a connection is said when there is one, not at the
    next repetition (10 s). Method: the NIC joins before anybody listens."""
    network, description = InProcessNetwork(), Job().description
    with Nic(
        network.transport(), WorkerIdentity(job=1, rank=0, world_size=1),
        NicSettings(chunk_bytes=16 * KIB), endpoint="inproc://late",
    ) as nic:  # fmt: skip
        encoded = description.to_bytes()
        nic._command(lambda now: nic._core.join(now, encoded, description.hash), wait=True)
        parent = network.transport()
        parent.listen("inproc://late")
        received = [parent.receive(5 * 10**9) for _ in range(2)]
        assert [type(item).__name__ for item in received] == ["PeerUp", "Delivery"]
    parent.close()


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """I8. Goal: after a job, and after a refusal, no thread of it is left."""
    before = set(threading.enumerate())
    job = Job()
    with cluster_for(job, tmp_path, transport="ipc") as cluster:
        cluster.run(Worker(job))
    refusal(job, tmp_path, memory_budget_bytes=job.least_bytes)
    for thread in set(threading.enumerate()) - before:
        if "GarbageCollector" not in type(thread).__name__:  # that of pyzmq stays
            thread.join(timeout=10)
            assert not thread.is_alive(), thread


class Cancels(Worker):
    """The last rank gives step 0 up before the first has sent a weight."""

    has_cancelled = threading.Event()

    def _initial_chunks(self) -> Any:
        assert self.has_cancelled.wait(60)
        return super()._initial_chunks()

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> Any:
        if may_cancel and nic.rank == 1:
            nic.cancel("before there are weights")
            self.has_cancelled.set()
        return super()._step(nic, step, may_cancel)


def test_a_job_does_not_wait_for_repetitions(tmp_path: Path) -> None:
    """Goal: where nothing is lost, nothing is asked for twice: every request is answered once it
    can be, so the pause before a repetition (10 s) never shows.
    Method: short jobs; a repeated message would be the answer to a lost one."""
    repeated: list[str] = []

    class Told(Outstanding[Any]):
        def due(self, now_ns: int) -> list[Any]:
            again = super().due(now_ns)
            repeated.extend(type(send.message).__name__ for send in again)
            return again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("luwu.protocol.uplink.Outstanding", Told)
        for update, poison_step, has_switch in itertools.product(
            ("streaming", "at_step"), (None, 2), (True, False)
        ):
            job = Job(update=update, poison_step=poison_step)
            with cluster_for(job, tmp_path, has_switch=has_switch) as cluster:
                check(cluster, job, cluster.run(Worker(job)))
        for nodes in (1, 2):
            job = Job(layout=replace(make_layout(), optimizer_nodes=nodes))
            with cluster_for(job, tmp_path, optimizer_nodes=nodes) as cluster:
                assert [seen.aborted_steps for seen in cluster.run(Cancels(job))] == [[0], [0]]
    assert repeated == []


def test_what_cannot_be_dialled_closes_the_transport() -> None:
    """I8. Goal: the caller gets no object that it could close."""
    nowhere = "tcp://127.0.0.1:0"
    for_reader, for_nic = ZeroMqTransport(), ZeroMqTransport()
    with pytest.raises(ConfigError, match="cannot be dialled"):
        StateReader(for_reader, endpoint=nowhere, job=1)
    with pytest.raises(ConfigError, match="cannot be dialled"):
        Nic(
            for_nic, WorkerIdentity(job=1, rank=0, world_size=1),
            NicSettings(chunk_bytes=16 * KIB), endpoint=nowhere,
        )  # fmt: skip
    assert (for_reader.hub.context.closed, for_nic.hub.context.closed) == (True, True)


def test_a_cluster_that_cannot_be_made_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8. Goal: the node listens no more when there is no memory for the switch's arena."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with (
        pytest.raises(ConfigError, match="arena"),
        cluster_for(
            Job(), tmp_path, transport="shm", switch_limits=SwitchLimits(cache_bytes_max=1 << 60)
        ),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_comes_too_late_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8. Goal: the thread of a rank may ask for its NIC when another rank has failed and the
    cluster is closed; what it opens then would stay open."""
    made: list[Transport] = []

    def recorded(endpoint: str, *, arena_bytes: int) -> Transport:
        made.append(open_transport(endpoint, arena_bytes=arena_bytes))
        return made[-1]

    monkeypatch.setattr("luwu.launch.local_cluster.open_transport", recorded)
    with cluster_for(Job(), tmp_path, transport="ipc") as cluster:
        pass
    with pytest.raises(LuwuError, match="worker 1 comes too late"):
        cluster.nic(1)
    assert [transport.hub.context.closed for transport in made] == [True] * 3  # type: ignore[attr-defined]


def test_a_worker_leaves_though_its_switch_is_gone(tmp_path: Path) -> None:
    """Goal: when its steps are decided, a switch that is gone costs a worker seconds and a warning,
    not all of --grace and an error. Method: the switch ends between the last step and the leave."""
    job, events = Job(world_size=1), tmp_path / "worker.jsonl"
    with cluster_for(job, tmp_path, transport="tcp", grace_s=3600.0) as cluster:
        nic = cluster.nic(0)
        Worker(job)(nic)
        cluster._stopping.set()
        cluster.wait_until_served()
        cluster.switch.transport.close()
        with Recorder(role="worker", path=events, printed=None) as nic.recorder:
            nic.leave()
    names = [json_object(line)["name"] for line in events.read_text().splitlines()]
    assert names[-2:] == ["worker.leaves", "worker.left_unnoted"]


@every_place
def test_who_answered_a_leave_stays_until_its_children_have_gone(
    has_switch: bool, tmp_path: Path
) -> None:
    """I6. Goal: no last answer is lost with its connection, which discards what it has not sent if
    something came meanwhile: a child would wait for it for ever."""
    job = Job(world_size=1)
    with cluster_for(job, tmp_path, has_switch=has_switch, transport="tcp") as cluster:
        nic = cluster.nic(0)
        Worker(job)(nic)
        nic.leave()
        for thread in cluster._threads:
            thread.join(timeout=0.3)
        assert all(thread.is_alive() for thread in cluster._threads)
        nic.close()
        cluster.wait_until_served()
