"""The optimizer's pipeline: a fixed set of threads that read, add, update, write and publish pages.

Each thread takes a page through all its stages; while some wait for the disk others compute, so
the stages of different pages overlap and the buffers are bounded by the number of threads
(step-centric, as in the paper: fixed threads over the whole step, not one pipeline per layer).
A thread is one request in flight; there are more threads than CPU cores, as many as the plan has
buffers for. The core decides the order of pages; nothing is decided here.

Threads never touch a core: they queue a function that the shell's loop calls. The loop is woken
once for all functions in the queue.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from luwu.aggregate import Aggregator
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.events import Recorder
from luwu.base.failpoints import failpoint
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, decode_hyper
from switch_emu.node.block_norms import block_norms
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import (
    Decide,
    Fold,
    Inspect,
    KeepPiece,
    LoadPage,
    Prepare,
    ReadWeights,
    Update,
)
from switch_emu.node.extent_pages import ExtentPage, extent_pages
from switch_emu.node.kernels import UpdateCall, UpdateKernel
from switch_emu.node.outgoing import Outgoing
from switch_emu.node.pages import WEIGHT, field_view
from switch_emu.node.places import WeightsPlaces
from switch_emu.node.runs import count_update, update_runs
from switch_emu.node.scratch import Adder, Scratch, record_views
from switch_emu.node.statistics import Statistics
from switch_emu.node.update import clip_scale
from switch_emu.process.payload import Buffers, Payload
from switch_emu.store import (
    Contributor,
    DecidedStep,
    PageStore,
    StaleAttempt,
    VersionMissing,
)
from switch_emu.store.attachments import RECORD_KEY, AttachmentFiles

KERNEL_KEY: Final = "kernel"
"""In `DecidedStep.extra`: name and version of the update that made the step."""

Finished = Callable[[], Sequence[Any]]
"""Called by the shell's loop: passes an event to the core, returns its actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Storage and buffers of a pipeline."""

    store: PageStore
    attachments: AttachmentFiles
    buffers: Buffers
    """Memory for weights that are sent as a copy."""
    places: WeightsPlaces | None = None
    """Weights that workers read in place; None: copies are sent."""


class _Updated(NamedTuple):
    """A page that has its new values, not written yet."""

    squares: tuple[float, ...]
    record: memoryview


class Pipeline:
    """The threads that work on a node's pages; see the module."""

    def __init__(
        self, core: NodeCore, stored: Stored, description: Description, *, job: int,
        kernel: UpdateKernel, aggregator: Aggregator, updates_count: int, reads_count: int,
        recorder: Recorder, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._core, self._job = core, job
        self._store, self._attachments = stored.store, stored.attachments
        self._layout = description.layout
        self._places, self._sent = stored.places, stored.buffers
        self._kernel = kernel
        self._streaming = description.update == "streaming"
        self._norm_type = description.norm_type
        self._recorder, self._wake = recorder, wake
        self.statistics = Statistics(self._layout)
        """Statistics of the last measured step."""
        self._aggregator = aggregator
        elems_max = max(chunk.elems for chunk in self._layout.chunks)
        self._pages: dict[int, tuple[ExtentPage, ...]] = {}
        self._adder = Adder(elems_max, aggregator, core.groups)
        self._sums = Buffers(lambda nbytes: np.empty(nbytes, np.uint8).data)
        self._sums_room = threading.Semaphore(updates_count)
        """Limits sums that the core has not counted yet to one per thread."""
        self._finished: list[Finished] = []
        self._finished_lock = threading.Lock()
        self._error: BaseException | None = None
        self._hyper: tuple[bytes, StepHyper] | None = None
        self._is_closing = False
        # Two queues: pulls must not wait for queued updates.
        self._updates: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, args=(tasks,), name=name, daemon=True)
            for tasks, name, count in (
                (self._updates, "luwu-update", updates_count),
                (self._reads, "luwu-read", reads_count),
            )
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, action: Any) -> None:
        """Start an action of the core in a thread."""
        tasks = self._reads if isinstance(action, ReadWeights) else self._updates
        tasks.put(action)

    def take_finished(self) -> list[Finished]:
        """Actions finished since the last call. Raises the error of a thread."""
        if self._error is not None:
            raise self._error
        with self._finished_lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """End the threads and wait for them."""
        self._is_closing = True
        self._sums_room.release(len(self._threads))
        for thread in self._threads:
            (self._reads if thread.name == "luwu-read" else self._updates).put(None)
        for thread in self._threads:
            thread.join()

    # ---------------------------------------------------------------------- threads

    def _serve(self, tasks: queue.SimpleQueue[Any]) -> None:
        self._kernel.enter_thread()
        scratch = Scratch(self._store.config, self._kernel.state_fields)
        while True:
            action = tasks.get()
            if action is None:
                return
            try:
                self._do(action, scratch)
            except BaseException as exc:
                self._error = exc
                self._wake()
                return

    def _do(self, action: Any, scratch: Scratch) -> None:
        match action:
            case Update():
                self._update(action, scratch)
            case ReadWeights():
                self._read(action, scratch)
            case Fold():
                self._fold(action)
            case Inspect():
                self._inspect(action)
            case LoadPage():
                self._load(action, scratch)
            case KeepPiece():
                self._keep(action)
            case Prepare():
                self._prepare(action)
            case Decide():
                start_ns = SYSTEM_CLOCK.now_ns()
                self._store.decide(action.version, action.attempt)
                self._attachments.note_decided(action.version, self._store.decided)
                self.statistics.decided(action.version - 1, action.attempt)
                if self._places is not None:
                    self._places.note_decided(action.version, action.attempt)
                self._span("decide", start_ns, step=action.version - 1)
                failpoint("node.after_decide")
                self._report(lambda: self._core.decided(action))
            case _:
                raise AssertionError(f"unknown action {action}")

    def _report(self, finished: Finished) -> None:
        with self._finished_lock:
            is_first = not self._finished
            self._finished.append(finished)
        if is_first:
            self._wake()

    def _span(self, name: str, start_ns: int, **fields: object) -> int:
        now_ns = SYSTEM_CLOCK.now_ns()
        self._recorder.span(name, start_ns, now_ns, **fields)
        return now_ns

    def _update(self, action: Update, scratch: Scratch) -> None:
        pages = self._pages_of(action.chunk)
        wire = self._wire(action.chunk, action.step + 1, action.attempt, needed=action.publish)
        squares: tuple[float, ...] = ()
        is_finite = True
        for each in pages:
            target = self._update_page(action, each, wire, scratch)
            squares += target.squares
            is_finite = is_finite and all(map(math.isfinite, target.squares))
            if is_finite and each is not pages[-1]:
                self._write(action, each, target.record)
        published = None
        if is_finite:
            published = wire.written()
        else:
            wire.given_up()
        if published is not None and not action.publish:
            published.drop()
            published = None
        in_place = wire.is_in_place
        self._report(lambda: self._core.updated(action, squares, published, in_place=in_place))
        if is_finite:  # else the step will be skipped, and its pages are discarded anyway
            self._write(action, pages[-1], target.record)
        self._report(lambda: self._core.written(action))

    def _update_page(
        self, action: Update, page: ExtentPage, wire: Outgoing, scratch: Scratch
    ) -> _Updated:  # fmt: skip
        """Read a page and update it, in RAM if it is there, else in the thread's own record."""
        start_ns = SYSTEM_CLOCK.now_ns()
        number, absent = page.number, page.absent(action.absent)
        record = self._store.record_in_ram(number, action.step)
        if record is None:
            self._store.read(number, action.step, scratch.record(number))
        place = self._place(action, number)
        read_ns = self._span("read", start_ns, step=action.step, chunk=page.chunk)
        kind, fields = self._store.config.kind(number), self._kernel.state_fields
        own = scratch.views(number)
        source = own if record is None else record_views(kind, record, fields)
        target = own if place is None else record_views(kind, place, fields)
        hyper = self._decoded(action.hyper)
        runs = update_runs(self._layout, page.chunk, hyper, source.updates, absent)
        pieces = self.statistics.pieces(page.chunk) if hyper.measure else None
        with self._adder.terms(action.contributions, page.elems, page.start) as contributions:
            squares = self._kernel.update(
                UpdateCall(
                    contributions=contributions,
                    weights=source.weights,
                    state=source.state,
                    weights_out=target.weights,
                    state_out=target.state,
                    runs=runs,
                    divisor=action.divisor,
                    scale=clip_scale(hyper, action.grad_norm),
                    wire=page.part_of(wire.target),
                    measure=self._streaming,
                    pieces=pieces,
                )
            )
        count_update(source.updates, absent, target.updates)
        if pieces is not None:
            self.statistics.add(action, page.chunk, pieces)
        self._span("update", read_ns, step=action.step, chunk=page.chunk)
        return _Updated(squares, scratch.record(number) if place is None else place)

    def _write(self, action: Update, page: ExtentPage, record: memoryview) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        try:
            self._store.write(page.number, action.step + 1, action.attempt, record)
        except StaleAttempt:
            pass  # the attempt was given up meanwhile; the core knows
        self._span("write", start_ns, step=action.step, chunk=page.chunk)
        failpoint("node.after_write")

    def _place(self, action: Update, page: int) -> memoryview | None:
        try:
            return self._store.place_in_ram(page, action.step + 1, action.attempt)
        except StaleAttempt:
            return None  # `write` raises it again

    def _pages_of(self, extent: int) -> tuple[ExtentPage, ...]:
        found = self._pages.get(extent)
        if found is None:
            found = self._pages[extent] = extent_pages(self._layout, extent)
        return found

    def _wire(self, extent: int, step: int, attempt: int, *, needed: bool) -> Outgoing:
        found = self._layout.extents[extent]
        return Outgoing(
            self._places, self._sent, extent, step, attempt,
            dtype=found.wire_dtype, nbytes=found.wire_bytes if needed else 0,
        )  # fmt: skip

    def _inspect(self, action: Inspect) -> None:
        payloads = [c.payload for c in action.contributions if isinstance(c.payload, Payload)]
        overflowed = self._aggregator.overflowed([payload.view() for payload in payloads])
        self._report(lambda: self._core.inspected(action, fits=not overflowed))

    def _fold(self, action: Fold) -> None:
        self._sums_room.acquire()
        if self._is_closing:
            return
        memory, payload = self._sums.take(self._layout.extents[action.chunk].sum_bytes)
        start_ns = SYSTEM_CLOCK.now_ns()
        squares: tuple[float, ...] = ()
        for page in self._pages_of(action.chunk):
            squares += self._fold_page(action, page, page.part(memory, "float32"))
        self._span("fold", start_ns, step=action.step, extent=action.chunk)
        self._report(lambda: self._folded(action, squares, payload))

    def _fold_page(self, action: Fold, page: ExtentPage, memory: memoryview) -> tuple[float, ...]:
        total = np.frombuffer(memory, np.float32)
        before = None
        if action.total is not None:  # copied: if it was spilled, its memory is free again at once
            assert isinstance(action.total.payload, Payload)
            memory[:] = action.total.payload.part(4 * page.start, 4 * (page.start + page.elems))
            before = total
        with self._adder.terms(action.contributions, page.elems, page.start) as contributions:
            squares = self._kernel.fold(contributions, before, total)
        return squares if self._norm_type == 2 else block_norms(total, self._norm_type)

    def _folded(self, action: Fold, squares: tuple[float, ...], payload: Payload) -> Sequence[Any]:
        self._sums_room.release()
        return self._core.folded(action, squares, payload, payload.nbytes)

    def _read(self, action: ReadWeights, scratch: Scratch) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        payload, in_place = None, True
        if self._places is not None:
            payload = self._places.get(action.chunk, action.step, action.attempt)
        if payload is None:
            wire = self._wire(action.chunk, action.step, action.attempt, needed=True)
            try:
                self._read_weights(action, wire, scratch)
                payload, in_place = wire.written(), wire.is_in_place
            except VersionMissing:  # decided or aborted meanwhile: no longer needed
                wire.given_up()
        self._span("read_weights", start_ns, step=action.step, extent=action.chunk)
        self._report(lambda: self._core.weights_read(action, payload, in_place=in_place))

    def _read_weights(self, action: ReadWeights, wire: Outgoing, scratch: Scratch) -> None:
        while True:
            version = action.version
            if version is None:
                decided = self._store.decided
                assert decided is not None
                version = decided.version
            try:
                for page in self._pages_of(action.chunk):
                    self._copy_weights(page, version, wire, scratch)
                return
            except VersionMissing:
                if action.version is not None:
                    raise  # else the next version was decided just now

    def _copy_weights(
        self, page: ExtentPage, version: int, wire: Outgoing, scratch: Scratch
    ) -> None:  # fmt: skip
        kind = self._store.config.kind(page.number)
        target = page.part_of(wire.target)
        assert target is not None
        memory, dtype = target
        record = self._store.record_in_ram(page.number, version)
        if record is not None:
            self._kernel.cast(field_view(kind, record, WEIGHT), dtype, memory)
        elif dtype == "float32":
            self._store.read_field(page.number, version, WEIGHT, memory)
        else:
            weights = scratch.weights(page.elems)
            self._store.read_field(page.number, version, WEIGHT, weights.view(np.uint8).data)
            self._kernel.cast(weights, dtype, memory)

    def _load(self, action: LoadPage, scratch: Scratch) -> None:
        page = self._layout.page(action.chunk)
        kind = self._store.config.kind(page)
        record = scratch.record(page)
        np.frombuffer(record, np.uint8)[:] = 0
        payload = action.payload
        assert isinstance(payload, Payload)
        data, start = payload.view(), 0
        for field in kind.fields:  # weights, then optimizer state if it is imported
            if start < len(data):
                at, _ = kind.range(field.name)
                record[at : at + field.field_bytes] = data[start : start + field.field_bytes]
                start += field.field_bytes
        try:
            self._store.write(page, 0, action.attempt, record)
        except StaleAttempt:
            pass  # the attempt was given up meanwhile; the core knows
        self._report(lambda: self._loaded(action, payload))

    def _loaded(self, action: LoadPage, payload: Payload) -> Sequence[Any]:
        payload.drop()
        return self._core.page_loaded(action)

    def _keep(self, action: KeepPiece) -> None:
        payload = action.payload
        assert isinstance(payload, Payload)
        rank = action.ranks.bit_length() - 1
        self._attachments.put(action.step + 1, action.attempt, rank, action.piece, payload.view())
        self._report(lambda: self._core.piece_kept(action))

    def _prepare(self, action: Prepare) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        extra = {KERNEL_KEY: f"{self._kernel.name} {self._kernel.version}"}
        if action.kept_attempt is not None:
            extra[RECORD_KEY] = self._attachments.seal(action.version, action.kept_attempt)
        ranks = range(action.contributors.bit_length())
        self._store.prepare(
            DecidedStep(
                version=action.version,
                attempt=action.attempt,
                epoch=action.epoch,
                job=self._job,
                generation=self._store.generation,
                contributors=tuple(
                    Contributor(rank, 0, action.version)
                    for rank in ranks
                    if action.contributors >> rank & 1
                ),
                hyper=action.hyper,
                applied=action.applied,
                grad_norm=action.grad_norm,
                extra=extra,
            )
        )
        self._span("prepare", start_ns, step=action.version - 1)
        failpoint("node.after_prepare")
        self._report(lambda: self._core.prepared(action))

    def _decoded(self, hyper: bytes) -> StepHyper:
        held = self._hyper
        if held is None or held[0] != hyper:
            held = self._hyper = (hyper, decode_hyper(hyper))
        return held[1]
