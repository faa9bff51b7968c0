"""Moving bytes between the host's memory, which the network reads and writes, and the device.

    CpuDevice    they are one: weights are used where they come, gradients are written to cells
    CudaDevice   weights: host memory -> pull stream -> the unit's storage -> compute waits (event)
                 gradients: compute -> (event) push stream: packed in the wire dtype -> cell,
                 and handed to the network when they are there (`luwu/nic/threads.py`)

Invariants of `CudaDevice`; tests cite them:

    D1  The compute stream waits for events, the host never does while it queues a step's work:
        it waits for the network, for room in a bounded ring, and in `step()`.
    D2  Host memory of a pull is given back, and its place released, after the copy from it.
    D3  Device memory a unit freed is written again after the compute that read it: the pull stream
        waits for the event recorded when the memory was freed, and only if it got that memory.
    D4  A gradient's memory is not reused before it was packed, nor a cell sent before it is full.
    D5  Buffers are bounded: (window + 2) units of pinned memory for pulls, what is packed at once
        on the device and, for cells that cannot be registered, `STAGING_COUNT` extents of pinned
        memory.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from luwu.base.address import address_of
from luwu.base.limits import MIB
from luwu.nic.memory import Cells, ExtentGradient, SharedWeights
from luwu.nic.shell import Nic
from luwu.nic.threads import Ready
from luwu.training.devices.gpu import CudaStreams, HostPins, Ring
from luwu.training.devices.gradients import ExtentPlan, flat_gradients, write

STAGING_COUNT = 4
"""Extents under way to cells that the GPU cannot write."""


class Device(ABC):
    """One worker's device. Used by the training thread; what `seal` returns is called by any."""

    where: torch.device
    cells: Cells | _StagedCells
    """Source of cells for gradients; known when it is connected."""

    @abstractmethod
    def connect(self, nic: Nic) -> None:
        """The NIC that pushes what is written."""

    def plan(self, units: Iterable[Sequence[ExtentPlan]]) -> None:  # noqa: B027 - a GPU packs them
        """The extents of each unit that is pushed."""

    def begin(self, flat: Sequence[torch.Tensor | None]) -> None:
        """A unit's gradients, of which extents are written from now on; none: it is over."""
        self._flat = flat

    @abstractmethod
    def write(self, plan: ExtentPlan, cell: Any, dtype: torch.dtype) -> None:
        """Write an extent of them to a cell, which is to be pushed after `seal`."""

    def seal(self) -> Ready | None:
        """Before what was written so far is pushed: what returns when it is there."""
        return None

    def start(self, *, unit_bytes_max: int, window: int) -> None:  # noqa: B027 - a GPU's buffers
        """The sizes are known."""

    def let_go(self) -> None:  # noqa: B027 - a GPU's copies
        """Return when no weights are read any more where their sender has them."""

    def drop(self) -> None:  # noqa: B027 - a GPU's copies
        """The attempt is lost: return when nothing of it is under way."""

    def close(self) -> None:  # noqa: B027 - a GPU's memory
        """Let go of everything; the NIC is closed after it."""


class CpuDevice(Device):
    """The host's memory is the device's: only gradients are copied, to where they are sent from."""

    where = torch.device("cpu")

    def connect(self, nic: Nic) -> None:
        self.cells = nic.cells

    def write(self, plan: ExtentPlan, cell: Any, dtype: torch.dtype) -> None:
        write(plan, self._flat, torch.frombuffer(cell.data, dtype=dtype))


class CudaDevice(Device):
    """See the module."""

    def __init__(self, where: torch.device, streams: CudaStreams | None = None) -> None:
        """`streams` is for tests."""
        self.where = where
        self.streams = CudaStreams(where) if streams is None else streams
        self.may_share = True
        """Weights may be copied from where their sender has them."""
        self._freed: deque[tuple[int, int, torch.cuda.Event]] = deque()
        """Device memory from first to last byte that compute may still be reading."""
        self._lent: deque[tuple[SharedWeights, torch.cuda.Event]] = deque()
        self._packings: dict[int, Packing] = {}
        """Packings by extent."""
        self._packed_bytes = 0
        self._buffer: torch.Tensor | None = None
        self._packed: tuple[Packing, torch.Tensor] | None = None
        """The packing that is in the buffer, and the buffer's part that it takes."""
        self._unsealed: list[tuple[Any, torch.Tensor | None]] = []
        """Cells that are being written, and the buffer that is copied to each afterwards."""
        self._read: deque[tuple[Sequence[torch.Tensor | None], torch.cuda.Event]] = deque()
        """Gradients that the push stream may still be reading. (To tell the allocator of it,
        `record_stream`, costs two calls for each of them.)"""

    def connect(self, nic: Nic) -> None:
        self._nic = nic
        recorder, rank = nic.recorder, nic.rank
        self.pins = HostPins(
            self.streams,
            lambda why: recorder.event(
                "worker.not_registered", level="WARNING", rank=rank, reason=why,
                consequence="copied through pinned buffers, one more pass over host memory",
            ),
        )  # fmt: skip
        self._staging = Ring(lambda: self.streams.host_buffer(self._extent_bytes), STAGING_COUNT)
        self._extent_bytes = nic.chunk_bytes * nic.extent_chunks
        nic.cells.watch(self.pins.add, self.pins.drop)
        self.cells = _StagedCells(nic, self._staging)

    def start(self, *, unit_bytes_max: int, window: int) -> None:
        self.host = Ring(lambda: self.streams.host_buffer(unit_bytes_max), window + 2)

    # ---------------------------------------------------------------------- weights

    def fetch(
        self, octets: torch.Tensor, host: torch.Tensor, shared: SharedWeights | None
    ) -> torch.cuda.Event:
        """Copy a unit's weights to `octets`, whose storage has no bytes; `host` is given back.

        They are in `host`, or where `shared` says.
        """
        pull, nbytes = self.streams.pull, octets.numel()
        self._collect()
        source = host[:nbytes]
        if shared is not None:
            memory = (ctypes.c_ubyte * nbytes).from_address(shared.address)
            memory.mapping = shared.mapping  # type: ignore[attr-defined]  # lives as long as views
            place = torch.frombuffer(memory, dtype=torch.uint8)
            if self._may_read(shared):
                source = place
            else:  # from now on the NIC copies them to `host` behind our back
                self.may_share = False
                source.copy_(place)
                shared.release()
        pull.resize(octets.untyped_storage(), nbytes)
        self._wait_for_readers(octets.data_ptr(), nbytes)
        pull.run(lambda: octets.copy_(source, non_blocking=True))
        event = pull.record()
        if source.data_ptr() == host.data_ptr():
            self.host.give(host, event)
        else:
            assert shared is not None
            self.host.give(host)
            self._lent.append((shared, event))
        return event

    def free(self, storage: torch.UntypedStorage) -> None:
        """The compute that was queued so far is the last that reads it."""
        self._collect()
        if storage.nbytes():
            start = storage.data_ptr()
            event = self.streams.compute().record()
            self._freed.append((start, start + storage.nbytes(), event))
            self.streams.pull.resize(storage, 0)

    def _wait_for_readers(self, start: int, nbytes: int) -> None:
        for low, high, event in self._freed:
            if low < start + nbytes and start < high:
                self.streams.pull.wait(event)

    def _may_read(self, shared: SharedWeights) -> bool:
        """True if copies from there need not wait; registers it the first time."""
        where = (shared.address, shared.nbytes, shared.mapping)
        if self.pins.has_shared(*where):
            return True
        self.let_go()
        return self.pins.add_shared(*where)

    def let_go(self) -> None:
        for shared, event in self._lent:
            event.synchronize()
            shared.release()
        self._lent.clear()

    def _collect(self) -> None:
        while self._freed and self._freed[0][2].query():
            self._freed.popleft()
        while self._lent and self._lent[0][1].query():
            self._lent.popleft()[0].release()
        while self._read and self._read[0][1].query():
            self._read.popleft()

    # ---------------------------------------------------------------------- gradients

    def plan(self, units: Iterable[Sequence[ExtentPlan]]) -> None:
        for plans in units:
            for packing in packings(plans):
                self._packed_bytes = max(self._packed_bytes, packing.nbytes)
                self._packings.update(dict.fromkeys(packing.extents, packing))

    def begin(self, flat: Sequence[torch.Tensor | None]) -> None:
        super().begin(flat)
        self._packed = None
        self._collect()

    def write(self, plan: ExtentPlan, cell: Any, dtype: torch.dtype) -> None:
        packing, nbytes = self._packings[plan.extent], plan.nbytes
        if self._packed is None or self._packed[0] is not packing:
            self._packed = packing, self._pack(packing, dtype)
        source = packing.part(plan.extent, self._packed[1])
        staging = None
        if self.pins.has(address_of(cell.data), nbytes):
            target = torch.frombuffer(cell.data, dtype=dtype)
        else:
            staging = self._staging.wait()
            target = staging[:nbytes].view(dtype)

        self.streams.push.run(lambda: target.copy_(source, non_blocking=True))
        self._unsealed.append((cell, staging))

    def seal(self) -> Ready | None:
        written, self._unsealed = self._unsealed, []
        if not written:
            return None
        event = self.streams.push.record()
        self._read.append((self._flat, event))

        def ready() -> None:
            event.synchronize()
            for cell, staging in written:
                if staging is not None:
                    into = torch.frombuffer(cell.data, dtype=torch.uint8)
                    into.copy_(staging[: into.numel()])
                    self._staging.give(staging)

        return ready

    def _pack(self, packing: Packing, dtype: torch.dtype) -> torch.Tensor:
        push, flat = self.streams.push, self._flat
        if self._buffer is None:
            self._buffer = self.streams.device_buffer(self._packed_bytes)
        packed = self._buffer[: packing.nbytes].view(dtype)  # used in the order of the push stream
        push.wait(self.streams.compute().record())
        push.run(lambda: packing.pack(flat, packed))
        return packed

    def drop(self) -> None:
        self.begin(())
        self._unsealed = []
        self._nic.wait_for_copies()

    def close(self) -> None:
        self._nic.wait_for_copies()
        self._read.clear()
        self.let_go()
        self.pins.close()


class _StagedCells:
    """Cells, each taken when there is a buffer for what cannot be copied to it directly."""

    def __init__(self, nic: Nic, staging: Ring) -> None:
        self._nic, self._staging = nic, staging

    def take_now(self, nbytes: int) -> Any:
        """A cell that can be written now, or None if one must be waited for."""
        # Whether the cell needs a buffer is known when it is there.
        return self._nic.cells.take_now(nbytes) if self._staging.has_free() else None

    def take(self, nbytes: int) -> Any:
        """A cell; waits for one. What was written is pushed before."""
        self._nic.wait_for_copies(self._staging.has_free)
        return self._nic.cells.take(nbytes)


def device_at(where: torch.device) -> Device:
    """The way of bytes to this device."""
    return CudaDevice(where) if where.type == "cuda" else CpuDevice()


def write_unit(
    device: Device, plans: Sequence[ExtentPlan], gradients: Sequence[torch.Tensor | None],
    dtype: torch.dtype,
) -> Iterator[tuple[list[ExtentGradient], Ready | None]]:  # fmt: skip
    """Write a unit's gradients to cells; yield them to be pushed, several at a time, each time with
    what returns when they are there.

    Cells are taken as long as there are some without waiting. What has been written is yielded
    before a wait for more, so that the wait can end.
    """
    flat = flat_gradients(gradients)
    device.begin(flat)
    group: list[ExtentGradient] = []
    for plan in plans:
        absent = plan.absent(flat)
        if absent == plan.all_segments:
            group.append(ExtentGradient(plan.extent, None))
            continue
        cell = device.cells.take_now(plan.nbytes)
        if cell is None:
            if group:
                yield group, device.seal()
                group = []
            cell = device.cells.take(plan.nbytes)
        device.write(plan, cell, dtype)
        group.append(ExtentGradient(plan.extent, cell, absent))
    ready = device.seal()
    device.begin(())
    if group:
        yield group, ready


_PACKED_BYTES_MAX = 64 * MIB
"""Memory on the device, unless one extent is larger."""


class Packing:
    """Neighbouring extents, one behind the other in a buffer.

    Every call to a GPU costs the host some 10 us, however little it does, and an extent has parts
    of several parameters. So the parts of neighbouring extents are packed by one call, in the dtype
    of the push, and what a boundary between extents cuts in two is copied in one piece. Each extent
    then goes to its cell in one copy.
    """

    def __init__(self, plans: Sequence[ExtentPlan]) -> None:
        self.nbytes = sum(plan.nbytes for plan in plans)
        self._bounds: dict[int, tuple[int, int]] = {}
        """Extent -> its first element in the buffer and the first behind it."""
        self._pieces: list[tuple[int, int, int, int]] = []
        """(parameter, its first element, first element in the buffer, count)."""
        self.elems = covered = 0
        for plan in plans:
            self._bounds[plan.extent] = (self.elems, self.elems + plan.elems)
            for piece in plan.pieces:
                self._add(piece.parameter, piece.source, self.elems + piece.start, piece.elems)
                covered += piece.elems
            self.elems += plan.elems
        self._has_padding = covered < self.elems

    def _add(self, parameter: int, source: int, start: int, count: int) -> None:
        if self._pieces:
            last = self._pieces[-1]
            if (last[0], last[1] + last[3], last[2] + last[3]) == (parameter, source, start):
                self._pieces[-1] = (*last[:3], last[3] + count)
                return
        self._pieces.append((parameter, source, start, count))

    @property
    def extents(self) -> Sequence[int]:
        """Their indexes."""
        return tuple(self._bounds)

    def part(self, extent: int, packed: torch.Tensor) -> torch.Tensor:
        """An extent, in the buffer."""
        start, stop = self._bounds[extent]
        return packed[start:stop]

    def pack(self, flat: Sequence[torch.Tensor | None], packed: torch.Tensor) -> None:
        """Fill the buffer: zeros where a parameter has no gradient, and in the padding."""
        targets, sources = [], []
        for parameter, source, start, count in self._pieces:
            gradient = flat[parameter]
            if gradient is not None:
                targets.append(packed[start : start + count])
                is_whole = gradient.numel() == count
                sources.append(gradient if is_whole else gradient[source : source + count])
        if self._has_padding or len(targets) < len(self._pieces):
            packed.zero_()
        if targets:
            torch._foreach_copy_(targets, sources)


def packings(plans: Sequence[ExtentPlan]) -> list[Packing]:
    """A unit's extents, in groups that are packed at once."""
    groups: list[list[ExtentPlan]] = []
    nbytes = 0
    for plan in plans:
        nbytes += plan.nbytes
        if not groups or nbytes > _PACKED_BYTES_MAX:
            groups.append([])
            nbytes = plan.nbytes
        groups[-1].append(plan)
    return [Packing(group) for group in groups]
