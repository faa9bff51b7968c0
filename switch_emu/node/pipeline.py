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
from typing import Any, Final

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
        chunk = action.chunk
        named = {"step": action.step, "chunk": chunk}
        start_ns = SYSTEM_CLOCK.now_ns()
        page = self._layout.page(chunk)
        record = self._store.record_in_ram(page, action.step)
        if record is None:
            self._store.read(page, action.step, scratch.record(page))
        place = self._target(action)
        target = scratch.record(page) if place is None else place
        read_ns = self._span("read", start_ns, **named)
        wire = self._wire(chunk, action.step + 1, action.attempt, needed=action.publish)
        squares = self._compute(action, scratch, record, place, wire)
        is_finite = all(map(math.isfinite, squares))
        published = None
        if is_finite:
            published = wire.written()
        else:
            wire.given_up()
        if published is not None and not action.publish:
            published.drop()
            published = None
        update_ns = self._span("update", read_ns, **named)
        in_place = wire.is_in_place
        self._report(lambda: self._core.updated(action, squares, published, in_place=in_place))
        if is_finite:  # else the step is skipped, and its pages are discarded
            try:
                self._store.write(page, action.step + 1, action.attempt, target)
            except StaleAttempt:
                pass  # the attempt was given up meanwhile; the core knows
        self._span("write", update_ns, **named)
        failpoint("node.after_write")
        self._report(lambda: self._core.written(action))

    def _compute(
        self, action: Update, scratch: Scratch, record: memoryview | None,
        place: memoryview | None, wire: Outgoing,
    ) -> tuple[float, ...]:  # fmt: skip
        """Update the page from `record` to `place`; None of either: the thread's own record."""
        page = self._layout.page(action.chunk)
        kind, fields = self._store.config.kind(page), self._kernel.state_fields
        own = scratch.views(page)
        source = own if record is None else record_views(kind, record, fields)
        target = own if place is None else record_views(kind, place, fields)
        hyper = self._decoded(action.hyper)
        runs = update_runs(self._layout, action.chunk, hyper, source.updates, action.absent)
        pieces = self.statistics.pieces(action.chunk) if hyper.measure else None
        with self._adder.terms(action.contributions, source.weights.size) as contributions:
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
                    wire=wire.target,
                    measure=self._streaming,
                    pieces=pieces,
                )
            )
        count_update(source.updates, action.absent, target.updates)
        if pieces is not None:
            self.statistics.add(action, pieces)
        return squares

    def _target(self, action: Update) -> memoryview | None:
        try:
            page = self._layout.page(action.chunk)
            return self._store.place_in_ram(page, action.step + 1, action.attempt)
        except StaleAttempt:
            return None  # `write` raises it again

    def _wire(self, chunk: int, step: int, attempt: int, *, needed: bool) -> Outgoing:
        return Outgoing(
            self._places, self._sent, chunk, step, attempt,
            dtype=self._layout.chunks[chunk].wire_dtype,
            nbytes=self._layout.chunks[chunk].wire_bytes if needed else 0,
        )  # fmt: skip

    def _inspect(self, action: Inspect) -> None:
        payloads = [c.payload for c in action.contributions if isinstance(c.payload, Payload)]
        overflowed = self._aggregator.overflowed([payload.view() for payload in payloads])
        self._report(lambda: self._core.inspected(action, fits=not overflowed))

    def _fold(self, action: Fold) -> None:
        self._sums_room.acquire()
        if self._is_closing:
            return
        memory, payload = self._sums.take(self._layout.chunks[action.chunk].sum_bytes)
        total = np.frombuffer(memory, np.float32)
        before = None
        if action.total is not None:  # copied: if it was spilled, its memory is free again at once
            assert isinstance(action.total.payload, Payload)
            memory[:] = action.total.payload.view()
            before = total
        start_ns = SYSTEM_CLOCK.now_ns()
        with self._adder.terms(action.contributions, total.size) as contributions:
            squares = self._kernel.fold(contributions, before, total)
        if self._norm_type != 2:
            squares = block_norms(total, self._norm_type)
        self._span("fold", start_ns, step=action.step, chunk=action.chunk)
        self._report(lambda: self._folded(action, squares, payload))

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
        self._span("read_weights", start_ns, step=action.step, chunk=action.chunk)
        self._report(lambda: self._core.weights_read(action, payload, in_place=in_place))

    def _read_weights(self, action: ReadWeights, wire: Outgoing, scratch: Scratch) -> None:
        if action.version is not None:
            self._copy_weights(action.chunk, action.version, wire, scratch)
            return
        while True:
            decided = self._store.decided
            assert decided is not None
            try:
                self._copy_weights(action.chunk, decided.version, wire, scratch)
                return
            except VersionMissing:
                continue  # the next version was decided just now

    def _copy_weights(self, chunk: int, version: int, wire: Outgoing, scratch: Scratch) -> None:
        page = self._layout.page(chunk)
        kind = self._store.config.kind(page)
        assert wire.target is not None
        memory, dtype = wire.target
        record = self._store.record_in_ram(page, version)
        if record is not None:
            self._kernel.cast(field_view(kind, record, WEIGHT), dtype, memory)
        elif dtype == "float32":
            self._store.read_field(page, version, WEIGHT, memory)
        else:
            weights = scratch.weights(self._layout.chunks[chunk].elems)
            self._store.read_field(page, version, WEIGHT, weights.view(np.uint8).data)
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
