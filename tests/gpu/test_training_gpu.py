"""LuWu on a GPU: the same numbers as plain torch there, and what a step may not do."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.base.address import address_of
from luwu.base.errors import StepAborted
from luwu.base.limits import MIB
from luwu.nic.memory import SharedWeights
from luwu.training.devices.device import CudaDevice
from luwu.training.devices.gpu import CudaStreams, HostPins
from luwu.training.script.session import Session
from luwu.transport.arena import Access, map_memory
from tests.helpers.fake_nic import FakeNetwork, FakeNic
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import worker

pytestmark = pytest.mark.gpu

WIDTH, LAYERS, STEPS, LR = 256, 6, 5, 1e-2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.back = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.back(torch.tanh(self.linear(self.norm(x))))
        return y


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(LAYERS)), nn.Linear(WIDTH, 64))


def batch(step: int) -> torch.Tensor:
    return torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step)).cuda()


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = model(x).float().square().mean()
    return value


def train(
    network: FakeNetwork, *, around: Callable[[int, Callable[[], None]], None] | None = None
) -> tuple[dict[int, float], Session]:
    """Train to the end; `around(step, forward and backward)` runs them."""
    losses: dict[int, float] = {}
    with worker(network, device="cuda") as session:
        model = make_model()
        luwu.fully_shard_each(model, Block)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=LR)
        xs = [batch(step) for step in range(STEPS)]
        step = 0
        while step < STEPS:
            values: list[torch.Tensor] = []

            def compute(x: torch.Tensor = xs[step], values: Any = values) -> None:
                value = loss_of(model, x)
                value.backward()
                values.append(value.detach())

            try:
                if around is None:
                    compute()
                else:
                    around(step, compute)
                # Kept before the update: its step may be decided and the next one's prefetch lost.
                losses[step] = values[0].item()
                optimizer.step()
                step += 1
            except StepAborted as error:
                step = error.step
    return losses, session


def reference() -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same on the GPU in plain torch; the update on the CPU, as the node does it."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    losses = []
    for step in range(STEPS):
        there = make_model().cuda()
        there.load_state_dict(model.state_dict())
        value = loss_of(there, batch(step))
        value.backward()
        losses.append(value.item())
        for mine, its in zip(model.parameters(), there.parameters(), strict=True):
            assert its.grad is not None
            mine.grad = its.grad.cpu()
        optimizer.step()
    return losses, {name: each.detach() for name, each in model.named_parameters()}


@pytest.mark.parametrize("abort_at", [None, "pull", "push", "commit"])
@pytest.mark.parametrize("eager", [True, False])
def test_same_as_plain_torch(eager: bool, abort_at: str | None) -> None:
    """I4, D1-D5. The same kernels on the same numbers: the same bits, since every run of a kernel
    of one shape adds in one order (no atomics in these)."""
    network = FakeNetwork(1, eager=eager)
    if abort_at is not None:
        network.fail_at(abort_at, step=2)
    losses, _ = train(network)
    expected_losses, expected = reference()
    assert losses == dict(enumerate(expected_losses))
    for name, values in network.masters().items():
        assert torch.equal(values, expected[name]), name


@pytest.mark.parametrize(("master", "state"), [("float32", "bfloat16"), ("bfloat16", "int8")])
def test_state_in_fewer_bits(master: str, state: str, tmp_path: Path) -> None:
    """I3. Goal: with moments and weights in fewer bits, a GPU's gradients give the same weights
    whatever the chunks, and a loss near that of float32."""

    def work(**dtypes: str) -> float:
        model = make_model()
        luwu.fully_shard_each(model, Block)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3, **dtypes)  # type: ignore[arg-type]
        for step in range(STEPS):
            loss = loss_of(model, batch(step))
            loss.backward()
            optimizer.step()
        return loss.item()

    dtypes = {"master_dtype": master, "state_dtype": state}
    found = []
    for chunk_bytes, given in ((64 * 1024, dtypes), (1024 * 1024, dtypes), (1024 * 1024, {})):
        trained = in_cluster(
            tmp_path, lambda _, given=given: work(**given), device="cuda", chunk_bytes=chunk_bytes,
            memory_budget_bytes=256 * MIB,
        )  # fmt: skip
        found.append((trained.digest, trained.results[0]))
    assert found[0] == found[1]
    assert found[0][0] != found[2][0]
    assert abs(found[0][1] - found[2][1]) < 0.02 * found[2][1]


def test_no_host_synchronisation_in_a_step() -> None:
    """D1. Goal: from the second step on nothing in forward and backward waits for the device."""

    def around(step: int, compute: Callable[[], None]) -> None:
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            compute()
        finally:
            torch.cuda.set_sync_debug_mode("default")

    losses, _ = train(FakeNetwork(1), around=around)
    assert len(losses) == STEPS


def test_steady_state_asks_the_driver_for_no_memory() -> None:
    """Goal: after the first steps the caching allocator serves everything; and the memory of
    weights is bounded by (prefetch + 2) units."""
    segments: list[int] = []

    def around(step: int, compute: Callable[[], None]) -> None:
        compute()
        torch.cuda.synchronize()
        segments.append(torch.cuda.memory_stats()["segment.all.allocated"])

    _, session = train(FakeNetwork(1), around=around)
    assert len(set(segments[2:])) == 1, segments
    window = (session.nic.prefetch_units + 2) * session.model.unit_bytes_max
    assert session.pulls.bytes_count.peak <= window


def test_device_memory_is_bounded_by_the_window() -> None:
    """I5. Goal: at its peak the device holds the window, one unit's gradients and activations,
    not the model."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _, session = train(FakeNetwork(1))
    peak = torch.cuda.max_memory_allocated() - before
    window = (session.nic.prefetch_units + 2) * session.model.unit_bytes_max
    activations = LAYERS * 32 * WIDTH * 4 * 16
    gradients = 3 * session.model.unit_bytes_max  # deferred until the push stream has packed them
    assert (
        peak
        <= window
        + gradients
        + activations
        + 4 * session.nic.chunk_bytes * session.nic.extent_chunks
        + (16 << 20)
    )


def test_what_a_peer_writes_is_copied_from_where_it_lies() -> None:
    """D2. Goal: a read-only mapping can be registered, and its copies show what was written since.
    (A private one would show the first bytes for ever.)"""
    nbytes = 1 << 20
    fd = os.memfd_create("peer")
    os.ftruncate(fd, nbytes)
    theirs = map_memory(fd, nbytes, Access.OWN)
    ours = map_memory(fd, nbytes, Access.READ_ONLY)
    os.close(fd)
    device = CudaDevice(torch.device("cuda", 0))
    device.connect(FakeNic(FakeNetwork(1), 0))
    device.start(unit_bytes_max=nbytes, window=0)
    octets = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    storage = octets.untyped_storage()
    for value in (3, 7):
        theirs[:] = bytes([value]) * nbytes
        storage.resize_(0)
        shared = SharedWeights(address_of(ours), nbytes, ours, lambda: None)
        device.fetch(octets, device.host.wait(), shared).synchronize()
        assert device.may_share
        assert bool((octets == value).all())
    device.close()


def test_a_refused_registration_leaves_no_error_behind() -> None:
    """Goal: what cannot be registered is told, and no later kernel fails because of it."""
    said: list[str] = []
    pins = HostPins(CudaStreams(torch.device("cuda", 0)), said.append)
    memory = memoryview(bytearray(1 << 20))
    pins.add(memory)
    again = next(iter(pins._ends))
    pins._register(pins._ends, again, 1 << 20, read_only=False)
    assert said
    assert torch.ones(4, device="cuda").sum().item() == 4
    pins.close()
