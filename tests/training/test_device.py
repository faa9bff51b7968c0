"""The engines of a GPU worker, on streams of a CPU that do their work as late as they may."""

from __future__ import annotations

import ctypes
import mmap
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import luwu
from luwu.base.address import address_of
from luwu.layout import Layout, Parameter
from luwu.layout import Unit as LayoutUnit
from luwu.training.devices import device as device_module
from luwu.training.devices.device import STAGING_COUNT, CpuDevice, CudaDevice, write_unit
from luwu.training.devices.gpu import HostPins, Ring, mapping_at
from luwu.training.devices.gradients import gradient_plan, write
from luwu.training.script.session import Session
from tests.helpers import training_harness
from tests.helpers.fake_nic import FakeNetwork, FakeNic
from tests.helpers.fake_streams import FakeStream, FakeStreams
from tests.helpers.real_training import seeded, sharded
from tests.helpers.small_models import Stack, batch, shard
from tests.helpers.training_harness import assert_same_bits, reference, train, worker

STEPS = 4


def make() -> nn.Module:
    return seeded(lambda: Stack(width=48))


def loss(model: nn.Module, step: int, rank: int, part: int) -> torch.Tensor:
    value: torch.Tensor = model(batch(step, rank, part, width=48)).square().mean()
    return value


class Workers:
    """Every worker of a test gets a `CudaDevice` of its own."""

    def __init__(self) -> None:
        self.streams: list[FakeStreams] = []
        self.sessions: list[Session] = []

    @contextmanager
    def worker(self, network: FakeNetwork, rank: int = 0, **nic_options: Any) -> Iterator[Session]:
        streams = FakeStreams()
        device = CudaDevice(torch.device("cpu"), streams)
        with worker(network, rank, device=device, **nic_options) as session:
            self.streams.append(streams)
            self.sessions.append(session)
            yield session

    def hold_pushes(self) -> FakeStream:
        """The GPU copies no gradient for now, and there is room for all of them."""
        device: Any = self.sessions[0].mover
        device._staging._count_max = 100
        self.streams[0].push.hold()
        return self.streams[0].push


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """I8: each test ends without a thread that copies."""
    made = Workers()
    monkeypatch.setattr(training_harness, "worker", made.worker)
    yield made
    assert not [t for t in threading.enumerate() if t.name == "luwu-copy" and t.is_alive()]


def optimizer(update: str) -> Any:
    return lambda model: luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)


def expected(world_size: int, backwards: int = 1) -> Any:
    return reference(
        make, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True), loss,
        world_size=world_size, steps=STEPS, backwards=backwards,
    )  # fmt: skip


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(("update", "backwards"), [("at_step", 2), ("streaming", 1)])
def test_same_bits_as_plain_torch(
    workers: Workers, update: str, backwards: int, eager: bool
) -> None:
    """I4, D1-D4. Goal: no byte is read or reused before it may be.
    Method: every copy happens when its event is waited for, and not before."""
    network = FakeNetwork(2, eager=eager)
    train(network, make, shard, optimizer(update), loss, steps=STEPS, backwards=backwards)
    assert_same_bits(network.masters(), expected(2, backwards))
    for streams, session in zip(workers.streams, workers.sessions, strict=True):
        assert streams.host_buffers_count <= session.nic.prefetch_units + 2 + STAGING_COUNT  # D5
        assert streams.device_buffers_count == 1
        window = session.nic.prefetch_units + 2
        assert session.pulls.bytes_count.peak <= window * session.model.unit_bytes_max


@pytest.mark.parametrize("update", ["at_step", "streaming"])
@pytest.mark.parametrize("verb", ["pull", "push", "commit"])
@pytest.mark.parametrize("step", [0, 2])
def test_lost_steps_are_replayed(workers: Workers, verb: str, step: int, update: str) -> None:
    """I1. Goal: nothing of a lost attempt counts, wherever it was told to the worker."""
    network = FakeNetwork(2)
    network.fail_at(verb, rank=None if verb == "commit" else 1, step=step)
    train(network, make, shard, optimizer(update), loss, steps=STEPS)
    assert_same_bits(network.masters(), expected(2))
    assert network.attempt == 1


def test_steps_dropped_by_the_script_leave_nothing(workers: Workers) -> None:
    """Goal: zero_grad() before step() waits for copies under way, and nothing of them counts."""
    network = FakeNetwork(1)
    with workers.worker(network) as session:
        model = make()
        shard(model)
        made = optimizer("at_step")(model)
        workers.hold_pushes()
        loss(model, 0, 0, 0).backward()
        assert network.counts["push"] == 0
        threading.Timer(0.05, workers.streams[0].push.let_go).start()
        made.zero_grad()
        session.nic.wait_for_copies()
        assert network.now.pushes == {}
        for step in range(STEPS):
            while True:
                try:
                    loss(model, step, 0, 0).backward()
                    made.step()
                    break
                except luwu.StepAborted:
                    continue  # the next call after zero_grad() is told
    assert_same_bits(network.masters(), expected(1))


def test_backward_does_not_wait_for_copies(workers: Workers) -> None:
    """D1. Goal: a backward returns though no gradient has been copied; `step` waits for them."""
    network = FakeNetwork(1, chunk_bytes=65536)
    with workers.worker(network) as session:
        model = make()
        shard(model)
        made = optimizer("at_step")(model)
        push = workers.hold_pushes()
        loss(model, 0, 0, 0).backward()
        assert network.counts["push"] == 0
        assert len(session.mover._read) == 5  # D4: nobody else gets the gradients' memory
        threading.Timer(0.05, push.let_go).start()
        made.step()
        assert network.counts["push"] == 5  # units
        assert network.step == 1
        session.mover._collect()
        assert not session.mover._read


def test_copies_are_queued_behind_the_compute(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1. Goal: copies run behind the compute, both ways.
    Method: the order in which a step gives its streams work. As a block begins to compute, the copy
    of the next one's weights is queued, and in backward that of the last one's gradient."""
    count = 8
    queued: list[str] = []
    with workers.worker(FakeNetwork(1)) as session:
        model = sharded(lambda: Stack(blocks=count, width=48))
        for block in model.blocks:
            block.norm.register_forward_pre_hook(lambda *_: queued.append("forward"))
            block.down.register_full_backward_pre_hook(lambda *_: queued.append("backward"))
        made = optimizer("at_step")(model)
        streams = workers.streams[0]
        for stream, name in ((streams.pull, "weights"), (streams.push, "gradient")):
            monkeypatch.setattr(stream, "run", partial(_run, queued, name, stream.run))
        for step in range(3):
            queued.clear()
            loss(model, step, 0, 0).backward()
            made.step()
        assert session.nic.prefetch_units == 2

    def before(name: str) -> list[list[str]]:
        return [queued[:at] for at, each in enumerate(queued) if each == name]

    forward, backward = before("forward"), before("backward")
    assert len(forward) == len(backward) == count
    # The root's are the first. The last block is freed, and the next that is needed.
    for number, done in enumerate(forward[:-1], start=1):
        assert done.count("weights") >= 1 + number + 1, done
    for number, done in enumerate(backward[:-1], start=1):
        assert done.count("weights") >= 1 + count + number + 1, done
    for earlier, done in pairwise(backward):
        assert "gradient" in done[len(earlier) :], done


def _run(queued: list[str], name: str, run: Callable[[Any], None], work: Any) -> None:
    queued.append(name)
    run(work)


# ---------------------------------------------------------------------- the parts


def test_memory_is_refilled_after_its_last_reader() -> None:
    """D3. Goal: the pull stream waits for the reader of the memory it got, and for no other."""
    streams = FakeStreams()
    device = CudaDevice(torch.device("cpu"), streams)
    compute = streams.compute_stream
    compute.hold()
    storages = [torch.empty(4096, dtype=torch.uint8).untyped_storage() for _ in range(2)]
    places = [storage.data_ptr() for storage in storages]
    for storage in storages:
        compute.run(lambda: None)
        device.free(storage)
    first = device._freed[0][2]

    device._wait_for_readers(places[0] + 100, 10)
    assert streams.pull.waited_for == [first]
    device._wait_for_readers(max(places) + 4096, 10)
    assert streams.pull.waited_for == [first]

    compute.let_go()
    compute.do_until(2)
    device._collect()
    assert not device._freed


def test_ring_is_bounded_and_reuses_only_what_is_done() -> None:
    """D2, D5."""
    streams = FakeStreams()
    ring = Ring(lambda: streams.host_buffer(8), count_max=2)
    buffers = [ring.take(), ring.take()]
    assert ring.take() is None
    streams.pull.run(lambda: None)
    assert buffers[0] is not None
    ring.give(buffers[0], streams.pull.record())
    assert ring.take() is None  # the copy is under way
    assert not ring.has_free()
    assert ring.wait() is buffers[0]
    assert streams.pull.done_count == 1
    assert buffers[1] is not None
    ring.give(buffers[1])
    assert ring.take() is buffers[1]
    assert streams.host_buffers_count == 2


def layout_of(*shapes: tuple[int, ...]) -> Layout:
    """One unit of parameters of these shapes."""
    return Layout(
        parameters=tuple(
            Parameter(name=f"p{i}", shape=shape, wire_dtype="bfloat16")
            for i, shape in enumerate(shapes)
        ),
        units=(LayoutUnit(name="u", parameters=tuple(range(len(shapes)))),),
        chunk_bytes=16384,
    )


def shared_memory(*, private: bool) -> mmap.mmap:
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=flags)


def test_private_mappings_of_others_are_never_registered() -> None:
    """Goal: pinning would break copy-on-write; it is refused, and said once."""
    streams, said = FakeStreams(), list[str]()
    pins = HostPins(streams, said.append)
    private, shared = shared_memory(private=True), shared_memory(private=False)
    view = memoryview(private)
    at = address_of(view)
    assert not pins.add_shared(at + 64, 128, view)
    assert not pins.add_shared(at + 64, 128, view)
    assert said == ["weights of another process are mapped private"]

    view = memoryview(shared)
    at, page = address_of(view), mmap.PAGESIZE
    assert pins.add_shared(at + 64, 128, view)
    assert pins.add_shared(at + page, page + 1, view)
    found = mapping_at(at)
    assert found is not None
    assert "rw-s" in found[2]
    assert streams.registered == {at: page, at + page: 2 * page}  # whole pages, and no more
    assert pins.has_shared(at + 64, 128, view)
    assert not pins.has_shared(at + page, 2 * page + 1, view)
    pins.close()
    assert streams.registered == {}


def test_what_is_registered_stays_mapped_until_another_sender_takes_over() -> None:
    """Goal: a sender that was started again may be mapped where the old one was; nothing is copied
    from the memory that was there before."""
    streams = FakeStreams()
    pins = HostPins(streams, [].append)
    old, new = (memoryview(shared_memory(private=False)) for _ in range(2))
    assert pins.add_shared(address_of(old), 128, old)
    assert not pins.has_shared(address_of(old), 128, new)  # the same address, other memory
    where = weakref.ref(old.obj)
    at = address_of(new)
    del old
    assert where() is not None
    assert pins.add_shared(at, 128, new)
    assert where() is None
    assert streams.registered == {at: mmap.PAGESIZE}
    pins.close()


def test_cells_are_registered_until_they_go() -> None:
    streams, said = FakeStreams(), list[str]()
    pins = HostPins(streams, said.append)
    memory = memoryview(bytearray(4096))
    pins.add(memory)
    assert pins.has(address_of(memory), 4096)
    assert not pins.has(address_of(memory), 4097)
    pins.drop(memory)
    assert streams.registered == {}
    streams.refuse = "no"
    pins.add(memory)
    assert not pins.has(address_of(memory), 1)
    assert said == ["no"]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_packed_at_once_is_what_each_extent_would_be(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4. Goal: parameters that extents cut, padding and missing gradients are where they belong,
    whatever the buffer held before."""
    generator = random.Random(seed)
    sizes = [generator.randrange(1, 9000) for _ in range(generator.randrange(1, 7))]
    layout = layout_of(*((size,) for size in sizes))
    dtype = generator.choice([torch.float32, torch.bfloat16])
    monkeypatch.setattr(device_module, "_PACKED_BYTES_MAX", generator.choice([1, 20_000, 100_000]))
    plans = gradient_plan(layout, 0, dtype)
    gradients = [torch.randn(size) if generator.random() < 0.8 else None for size in sizes]
    seen = []
    for group in device_module.packings(plans):
        packed = torch.full((group.elems,), 7, dtype=dtype)
        group.pack(gradients, packed)
        for plan in plans:
            if plan.extent in group.extents:
                expected = torch.empty(plan.elems, dtype=dtype)
                write(plan, gradients, expected)
                assert torch.equal(group.part(plan.extent, packed), expected), f"seed {seed}"
                seen.append(plan.extent)
    assert seen == [plan.extent for plan in plans]


class Place:
    """A unit's weights in their sender's memory."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.mapping = memoryview(mapping)
        self.address = address_of(self.mapping)
        self.nbytes = 256
        self.is_released = False
        array = (ctypes.c_float * 64).from_address(self.address)
        array[:] = range(64)

    def release(self) -> None:
        self.is_released = True


@pytest.mark.parametrize("private", [True, False])
def test_a_senders_place_is_held_until_it_was_copied(private: bool) -> None:
    """D2. Goal: a registered place is copied from in place and released after the copy; one that
    cannot be registered is copied through a buffer, and no other is asked for."""
    streams = FakeStreams()
    device = CudaDevice(torch.device("cpu"), streams)
    session_nic = FakeNic(FakeNetwork(1), 0)
    device.connect(session_nic)
    device.start(unit_bytes_max=256, window=0)
    place = Place(shared_memory(private=private))
    flat = torch.empty(64)
    storage = flat.untyped_storage()
    octets = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (256,))
    storage.resize_(0)
    event = device.fetch(octets, device.host.wait(), place)
    assert place.is_released == private
    assert device.may_share == (not private)
    device.let_go()
    assert (event.query(), place.is_released) == (not private, True)
    event.synchronize()
    assert flat.tolist() == list(range(64))
    device.close()


def test_gradients_go_straight_to_registered_cells() -> None:
    """D4. Goal: one copy to a registered cell, with zeros in the padding; a buffer otherwise."""
    (plan,) = gradient_plan(layout_of((5, 3), (5, 3)), 0, torch.bfloat16)
    streams = FakeStreams()
    device = CudaDevice(torch.device("cpu"), streams)
    nic = FakeNic(FakeNetwork(1), 0)
    device.connect(nic)
    device.plan([[plan]])
    device.begin([torch.arange(15.0), None])
    for is_registered in (True, False):
        cell = nic.cells.take(plan.nbytes)
        if is_registered:
            device.pins.add(cell.data)
        device.write(plan, cell, torch.bfloat16)
        ready = device.seal()
        assert bytes(cell.data) == bytes(plan.nbytes)
        assert ready is not None
        ready()
        found = torch.frombuffer(cell.data, dtype=torch.bfloat16)
        assert found[:15].tolist() == list(range(15))
        assert not found[15:].any()
        assert streams.host_buffers_count == (not is_registered)
    device.close()


class OneAtOnce:
    """Cells of which one is free at a time: another comes free when the first was pushed."""

    def __init__(self) -> None:
        self.is_free = True
        self.waits_count = 0

    def take_now(self, nbytes: int) -> Any:
        if not self.is_free:
            return None
        self.is_free = False
        return SimpleNamespace(data=memoryview(bytearray(nbytes)))

    def take(self, nbytes: int) -> Any:
        assert self.is_free, "nothing was pushed before the wait, so it would never end"
        self.waits_count += 1
        return self.take_now(nbytes)


def test_what_is_written_is_pushed_before_a_wait() -> None:
    """Goal: a unit of many chunks goes out through a single cell, in order and unchanged."""
    device, cells = CpuDevice(), OneAtOnce()
    device.cells = cells  # type: ignore[assignment]
    plans = gradient_plan(layout_of((128, 96)), 0, torch.float32)
    gradient = torch.arange(96 * 128, dtype=torch.float32).view(96, 128)
    found = []
    for group, ready in write_unit(device, plans, [gradient], torch.float32):
        (only,) = group
        assert ready is None  # it is there
        found.append(torch.frombuffer(only.cell.data, dtype=torch.float32))
        cells.is_free = True  # it is pushed
    assert len(found) == len(plans) == 3
    assert cells.waits_count == 2
    assert torch.equal(torch.cat(found), gradient.view(-1))
    ((absent, _),) = write_unit(device, plans, [None], torch.float32)
    assert [each.cell for each in absent] == [None] * 3
