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
import torch
from torch import nn

import luwu
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, StateError
from luwu.base.events import Recorder
from luwu.launch.local_cluster import LocalCluster
from luwu.launch.serving import check_lost_steps
from luwu.nic.shell import Nic
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.process import make_node_shell
from switch_emu.node.shell import NodeShell
from switch_emu.switch.shell import SwitchShell
from tests.helpers.local_job import LARGE, Job, Worker
from tests.helpers.real_training import seeded
from tests.helpers.training_harness import one_thread  # noqa: F401 - for every test here
from tests.helpers.waiting import is_soon

COPIED, PUT_BACK = 2, 4
"""The state is copied before the one step, and put back before the other."""


class GoingBack(LocalCluster):
    """A cluster whose node ends, and comes back with a copy of the state that was taken before."""

    def __init__(self, directory: Path, *, redoes: bool, **changes: Any) -> None:
        self.state, self._copy = directory / "state", directory / "copy"
        self._redoes, self._node_ends = redoes, threading.Event()
        values: dict[str, Any] = {
            "world_size": 2, "state": self.state, "memory_budget_bytes": LARGE,
            "summary": directory / "summary.json",
        }  # fmt: skip
        super().__init__(**(values | changes))
        self._met = {
            COPIED: threading.Barrier(self.world_size, action=self._take_copy),
            PUT_BACK: threading.Barrier(self.world_size, action=self._put_back),
        }
        self._meetings = threading.local()

    def meet(self, step: int) -> None:
        """Every rank calls this before each step."""
        if step in self._met and step not in self._meetings.__dict__.setdefault("done", set()):
            self._meetings.done.add(step)
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
        policy = "redo" if self._redoes else "stop"
        self.spec = replace(self.spec, resume=True, limits=NodeLimits(on_lost_steps=policy))
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
    """I2. Goal: decided steps are not made again unless somebody says so: the node ends with the
    code of its own, and names both steps and what to do."""
    job = Job(steps=6)
    with (
        GoingBack(tmp_path, redoes=False, chunk_bytes=job.layout.chunk_bytes) as cluster,
        pytest.raises(StateError) as caught,
    ):
        cluster.run(MeetingWorker(job, cluster))
    assert caught.value.code == "E508"
    text = str(caught.value)
    assert "ends with step 1, but step 3 was announced as decided: steps 2 to 3 are lost" in text
    assert "--resume" in text
    assert "--on-lost-steps redo" in text


def _train(directory: Path, *, goes_back: bool) -> tuple[list[Any], str]:
    """A loop whose data and learning rate depend on what is attached."""
    with GoingBack(directory, redoes=True) as cluster:

        def work(nic: Nic) -> Any:
            luwu.init(nic=nic, device="cpu")
            model = seeded(lambda: nn.Linear(64, 64))
            luwu.fully_shard(model)
            cursor, lost = {"index": 0}, []
            luwu.attach("cursor", cursor)
            optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
            step = 0
            while step < 8:
                try:
                    if goes_back:
                        last = luwu.session().results.last
                        if last is not None:
                            last.wait()  # what is attached is sent by now
                        cluster.meet(step)
                    cursor["index"] += 1
                    x = torch.full((4, 64), float(cursor["index"] + nic.rank))
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                except luwu.StepsLost as error:
                    lost.append(str(error))
                    step = error.step
            luwu.finish()
            return cursor["index"], lost

        results = list(cluster.run(work))
        return results, cluster.weights_digest()


def test_what_was_attached_goes_back_with_the_state(tmp_path: Path) -> None:
    """I3. Goal: the script is told by `StepsLost`, a StepAborted, which steps are lost; the cursor
    of its data is that of the older step, and the weights come out as in a quiet run."""
    (tmp_path / "quiet").mkdir()
    (tmp_path / "lost").mkdir()
    quiet, expected = _train(tmp_path / "quiet", goes_back=False)
    found, digest = _train(tmp_path / "lost", goes_back=True)
    assert [index for index, _ in found] == [index for index, _ in quiet] == [8, 8]
    assert digest == expected
    for _, texts in found:
        assert len(texts) == 1
        assert "steps 2 to 3 are lost" in texts[0]
        assert "before it was decided" not in texts[0]


def test_redo_does_not_go_with_steps_that_are_never_lost() -> None:
    """Goal: at --durability step a lost step is a fault of the disk, and no policy hides it."""
    with pytest.raises(ConfigError, match="--durability step loses no decided step"):
        check_lost_steps(RunConfig(on_lost_steps="redo"))
    check_lost_steps(RunConfig(on_lost_steps="redo", durability="process"))
