"""A node that comes back with an older state than workers were told of; all but processes is real.

The many orders in which that can happen are those of `tests/simulate/test_going_back.py`.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import StateError
from luwu.base.events import Recorder
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from switch_emu.node.process import make_node_shell
from switch_emu.node.shell import NodeShell
from switch_emu.switch.shell import SwitchShell
from tests.helpers.local_job import LARGE, Job, Worker, check, cluster_for
from tests.helpers.waiting import is_soon

COPIED, PUT_BACK = 2, 4
"""The state is copied before the one step, and put back before the other."""


class GoingBack(LocalCluster):
    """A cluster whose node ends, and comes back with a copy of the state that was taken before."""

    def __init__(self, directory: Path, job: Job) -> None:
        self.state, self._copy = directory / "state", directory / "copy"
        self._node_ends = threading.Event()
        super().__init__(
            world_size=job.world_size, state=self.state, memory_budget_bytes=LARGE,
            summary=directory / "summary.json", chunk_bytes=job.layout.chunk_bytes,
        )  # fmt: skip
        self._met = {
            COPIED: threading.Barrier(self.world_size, action=self._take_copy),
            PUT_BACK: threading.Barrier(self.world_size, action=self._put_back),
        }

    def meet(self, step: int) -> None:
        """Every rank calls this before each step."""
        if step in self._met:
            self._met[step].wait()

    def _thread(self, name: str, shell: NodeShell | SwitchShell) -> threading.Thread:
        if isinstance(shell, NodeShell):
            run, ends = shell.run, self._node_ends
            shell.run = lambda should_stop: run(lambda: should_stop() or ends.is_set())  # type: ignore[method-assign]
        return super()._thread(name, shell)

    def _take_copy(self) -> None:
        assert is_soon(lambda: self.node.core.out.step == COPIED)  # so nothing is being written
        shutil.copytree(self.state, self._copy)

    def _put_back(self) -> None:
        assert is_soon(lambda: self.node.core.out.step == PUT_BACK)
        former = self.node
        self._node_ends.set()
        former.transport.wake()
        self._threads[0].join()
        former.close()
        self._transports.remove(former.transport)
        former.transport.close()
        shutil.rmtree(self.state)
        self._copy.rename(self.state)
        self._node_ends.clear()
        self.spec = replace(self.spec, resume=True)
        transport = self._transport(self.spec.plan().shared_bytes)
        self._listen(transport, "node")
        self.node = make_node_shell(self.spec, transport, Recorder(role="node", printed=None))
        self.nodes = [self.node]
        self._threads[0] = self._thread("node", self.node)
        self._threads[0].start()


class MeetingWorker(Worker):
    """A worker that meets the others before each step."""

    def __init__(self, job: Job, cluster: GoingBack) -> None:
        super().__init__(job)
        self._cluster = cluster

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> Any:
        self._cluster.meet(step)
        return super()._step(nic, step, may_cancel)


@pytest.mark.faults(31)
@pytest.mark.feature("a node that restarts without decided steps")
def test_a_node_with_an_older_state_ends_in_words(tmp_path: Path) -> None:
    """I2. Goal: a job does not make decided steps again: the node ends with the code of its own,
    and names both steps and what to do. A new run on the older state does, to the same end."""
    job = Job(steps=6)
    with GoingBack(tmp_path, job) as cluster, pytest.raises(StateError) as caught:
        cluster.run(MeetingWorker(job, cluster))
    assert caught.value.code == "E508"
    text = str(caught.value)
    assert "ends with step 1, but step 3 was announced as decided: steps 2 to 3 are lost" in text
    assert "--resume" in text
    with cluster_for(job, tmp_path, state=cluster.state, resume=True) as again:
        results = again.run(Worker(job))
        assert [seen.first_step for seen in results] == [COPIED] * job.world_size
        check(again, job, results)
