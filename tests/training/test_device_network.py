"""The engines of a GPU worker with the real NIC, transports and node: registered cells, real waits.

The streams are those of a CPU, which do their work as late as the events allow.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base.errors import StepAborted
from luwu.launch import local_cluster
from luwu.training.devices.device import CpuDevice, CudaDevice, Device
from luwu.transport.arena import Access
from luwu.transport.opening import open_transport
from tests.helpers.fake_streams import FakeStreams
from tests.helpers.real_training import in_cluster, sharded
from tests.training.test_device import STEPS, loss, make


def train(directory: Path, devices: list[Device], *, cancel: bool, update: str, **way: Any) -> str:
    """Two workers to the end; the digest of the weights."""

    def work(rank: int) -> None:
        model = sharded(make)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
        step, may_cancel = 0, cancel and rank == 0
        while step < STEPS:
            try:
                loss(model, step, rank, 0).backward()
                if may_cancel and step == 1:
                    may_cancel = False
                    optimizer.zero_grad()
                    continue
                optimizer.step()
                step += 1
            except StepAborted as error:
                step = error.step

    way = {"chunk_bytes": 16 * 1024} | way
    return in_cluster(directory, work, world_size=2, device=devices, **way).digest


@pytest.fixture(scope="module", params=["at_step", "streaming"])
def on_cpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An order of work, and the digest of CPUs that lose no step."""
    devices: list[Device] = [CpuDevice(), CpuDevice()]
    directory = tmp_path_factory.mktemp("cpu")
    return request.param, train(directory, devices, cancel=False, update=request.param)


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm", "shm read-only"])
@pytest.mark.parametrize("cancel", [False, True])
def test_same_bits_as_on_a_cpu(
    tmp_path: Path, transport: str, on_cpu: Any, cancel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3, D1-D5. Goal: what moves the bytes does not show in the weights, nor does a step that one
    rank drops by zero_grad() after its backward."""
    transport, _, read_only = transport.partition(" ")
    if read_only:
        opened = functools.partial(open_transport, peers=Access.READ_ONLY)
        monkeypatch.setattr(local_cluster, "open_transport", opened)
    streams = [FakeStreams() for _ in range(2)]
    there = [CudaDevice(torch.device("cpu"), each) for each in streams]
    update, expected = on_cpu
    found = train(tmp_path, [*there], cancel=cancel, update=update, transport=transport)
    assert found == expected
    for each, device in zip(streams, there, strict=True):
        assert each.registered == {}  # undone before the memory went
        assert each.device_buffers_count == 1
        # cells are registered, so no gradient went through a buffer; of weights, the window's
        assert each.host_buffers_count <= 4
        # a sender's weights are copied from where they lie, if they are mapped for it
        assert (each.read_only_count > 0) == bool(read_only)
        assert device.may_share == (transport != "shm" or bool(read_only))
