"""The engines of a GPU worker with the real NIC, transports and node: registered cells, real waits.

The streams are those of a CPU, which do their work as late as the events allow.
"""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import StepAborted
from luwu.launch import local_cluster
from luwu.launch.local_cluster import LocalCluster
from luwu.training.devices.device import CpuDevice, CudaDevice, Device
from luwu.training.script import run
from luwu.transport.arena import Access
from luwu.transport.opening import open_transport
from tests.helpers.fake_streams import FakeStreams
from tests.helpers.small_models import shard
from tests.training.test_device import STEPS, loss, make

BUDGET_BYTES = 256 * 1024 * 1024

_making = threading.Lock()


def train(
    tmp_path: Path, transport: str, update: str, devices: list[Device], *, cancel: bool = False
) -> str:
    """Two workers to the end; the digest of the weights."""

    def work(nic: Any) -> None:
        session = luwu.init(nic=nic, device=devices[nic.rank])
        try:
            with _making:
                model = make()
            shard(model)
            optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
            step, may_cancel = 0, cancel and nic.rank == 0
            while True:
                try:
                    if step == STEPS:
                        luwu.finish()
                        return
                    loss(model, step, nic.rank, 0).backward()
                    if may_cancel and step == 1:
                        may_cancel = False
                        optimizer.zero_grad()
                        continue
                    optimizer.step()
                    step += 1
                except StepAborted as error:
                    step = error.step
        finally:
            session.mover.close()
            nic.close()
            run._here.session = None

    with LocalCluster(
        world_size=2, state=None, memory_budget_bytes=BUDGET_BYTES, chunk_bytes=16384,
        summary=tmp_path / "summary.json", transport=transport,
    ) as cluster:  # fmt: skip
        cluster.run(work)
        return cluster.weights_digest()


def map_as_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        local_cluster, "open_transport", functools.partial(open_transport, peers=Access.READ_ONLY)
    )


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm", "shm read-only"])
@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("cancel", [False, True])
def test_same_bits_as_on_a_cpu(
    tmp_path: Path, transport: str, update: str, cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, D1-D5. Goal: what moves the bytes does not show in the weights."""
    transport, _, read_only = transport.partition(" ")
    if read_only:
        map_as_for_a_gpu(monkeypatch)
    streams = [FakeStreams() for _ in range(2)]
    where = torch.device("cpu")
    there = [CudaDevice(where, each) for each in streams]
    found = train(tmp_path, transport, update, list(there), cancel=cancel)
    assert found == train(tmp_path, transport, update, [CpuDevice(), CpuDevice()])
    for each, device in zip(streams, there, strict=True):
        assert each.registered == {}  # undone before the memory went
        assert each.device_buffers_count == 1
        # cells are registered, so no gradient went through a buffer; of weights, the window's
        assert each.host_buffers_count <= 4
        # a sender's weights are copied from where they lie, if they are mapped for it
        assert (each.read_only_count > 0) == bool(read_only)
        assert device.may_share == (transport != "shm" or bool(read_only))
