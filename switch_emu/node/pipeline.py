"""The optimizer's pipeline: a fixed set of threads that read, add, update, write and publish pages.

Each thread takes pages through all their stages; while some wait for the disk others compute, so
the stages of different pages overlap and the buffers are bounded by the number of threads
(step-centric, as in the paper: fixed threads over the whole step, not one pipeline per layer).
Pages of an extent that are neighbours in the store are worked on together, as many as a thread has
memory for: one request reads them, one call of the kernel updates them.
A thread is one request in flight; there are more threads than CPU cores, as many as the plan has
buffers for. The core decides the order of pages; nothing is decided here.

Threads never touch a core: they queue a function that the shell's loop calls. The loop is woken
once for all functions in the queue. What is short, and waits for no disk, the loop does itself.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from luwu.aggregate import Aggregator
from luwu.aggregate.interface import F32Array
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.events import Recorder
from luwu.base.failpoints import failpoint
from luwu.base.limits import NORM_BLOCK_ELEMS
from luwu.base.tree import partial_sums, ranks_of
from luwu.layout import SUM_BYTES, Share
from luwu.wire.description import Description
from luwu.wire.hyper import decode_hyper
from luwu.wire.stored import AVERAGE, UPDATES, WEIGHT
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import (
    BlockNorms,
    CopyPage,
    Decide,
    FillPage,
    Fold,
    KeepPiece,
    LoadPage,
    Prepare,
    ReadField,
    ReadWeights,
    Update,
)
from switch_emu.node.extent_pages import PageGroup, Pages
from switch_emu.node.kernels.interface import Contributions
from switch_emu.node.kernels.narrow import widen
from switch_emu.node.page_updates import Cause, Kernels, PageUpdates, notes_of
from switch_emu.node.pages import field_view, read_values, store_values
from switch_emu.node.plan import NodePlan
from switch_emu.node.readers import Finished, PinnedVersions
from switch_emu.node.scratch import Adder, Scratch, record_views
from switch_emu.node.sheets import Matrix
from switch_emu.process.payload import Buffers, Payload
from switch_emu.process.places import Outgoing, WeightsPlaces
from switch_emu.store import (
    Contributor,
    DecidedStep,
    PageKind,
    PageStore,
    StaleAttempt,
    VersionMissing,
    aligned_buffer,
)
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.records import RECORD_KEY
from switch_emu.store.views import RecordRows

_SHORT_ELEMS: Final = 64 * 1024
"""Up to so many elements an extent is added and updated by the loop itself: to hand it to a thread
takes longer than the kernel."""
TREE_KEY: Final = "tree"
"""Key of `DecidedStep.extra`: its `luwu.base.tree.partial_sums`, if there were any."""

_Queue = queue.SimpleQueue[Any]
"""Actions of the core; None ends a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Storage and buffers of a pipeline."""

    store: PageStore
    attachments: AttachmentFiles
    buffers: Buffers
    """Memory for weights that are sent as a copy."""
    places: WeightsPlaces | None = None
    """Weights that workers read in place; None: copies are sent."""
    share: Share | None = None
    """The chunks that the store holds; None: all."""


class Pipeline:
    """The threads that work on a node's pages; see the module."""

    def __init__(
        self, core: NodeCore, stored: Stored, description: Description, *, job: int,
        kernels: Kernels, aggregator: Aggregator, plan: NodePlan, recorder: Recorder,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        """`plan`: says how many threads there are."""
        self._core, self._job = core, job
        self._store, self._attachments = stored.store, stored.attachments
        self._layout = description.layout
        self._share = stored.share or Share(self._layout)
        self._places, self._sent = stored.places, stored.buffers
        self._kernels, self._kernel = kernels, kernels.made.kernel
        self._updates_of = PageUpdates(
            self._store.config, self._share, description.norm_type, kernels, plan.pages_together
        )
        self._streaming = description.update == "streaming"
        self._recorder, self._wake = recorder, wake
        self.versions = PinnedVersions(
            core, self._store, self._share, files=self._attachments, cast=self._kernel.cast,
            buffers=self._sent,
        )  # fmt: skip
        """Versions that are pinned for readers."""
        elems_max = plan.pages_together * max(chunk.elems for chunk in self._layout.chunks)
        self._tree = partial_sums(core.groups)
        self._adder = Adder(elems_max, aggregator, core.groups)
        # The loop waits for no thread that adds, and has an adder of its own.
        own_adder = Adder(min(elems_max, _SHORT_ELEMS), aggregator, core.groups)
        self._scratch = Scratch(self._store.config, own_adder, plan.pages_together)
        self._sums = Buffers(aligned_buffer)  # the log writes them where they lie
        self._sums_room = plan.updates_count
        """Sums that may be made before the core has counted one; the plan has memory for them."""
        self._waiting_folds: deque[Fold] = deque()
        self._finished: list[Finished] = []
        self._finished_lock = threading.Lock()
        self._error: BaseException | None = None
        self._work: dict[type, Callable[[Any, Scratch], None]] = {
            Update: self._update, Fold: self._fold, ReadWeights: self._read, CopyPage: self._copy,
            LoadPage: self._load, FillPage: self._fill, KeepPiece: self._keep,
            ReadField: self._read_field, Prepare: self._prepare, Decide: self._decide,
        }  # fmt: skip
        # Three queues: pulls must not wait for queued updates, nor either of them for readers.
        self._updates, reads, fields = (_Queue() for _ in range(3))
        self._queue_of = {ReadWeights: reads, CopyPage: reads, ReadField: fields}
        self._kernels.enter_thread()
        self._threads: list[tuple[threading.Thread, _Queue]] = []
        for tasks, name, count, pages_max in (
            (self._updates, "luwu-update", plan.updates_count, plan.pages_together),
            (reads, "luwu-read", plan.reads_count, 1),
            (fields, "luwu-readers", 1, 1),
        ):
            for _ in range(count):
                given = (tasks, pages_max)
                thread = threading.Thread(target=self._serve, args=given, name=name, daemon=True)
                self._threads.append((thread, tasks))
                thread.start()

    def start(self, action: Any) -> None:
        """Start an action of the core, in a thread unless it is short; a fold once there is room
        for its sum."""
        if isinstance(action, Fold):
            self._waiting_folds.append(action)
            self._start_folds()
        else:
            self._hand_over(action)

    def _start_folds(self) -> None:
        while self._waiting_folds and self._sums_room:
            self._sums_room -= 1
            self._hand_over(self._waiting_folds.popleft())

    def _hand_over(self, action: Any) -> None:
        if isinstance(action, Fold | Update) and self._is_short(action):
            self._work[type(action)](action, self._scratch)
        else:
            self._queue_of.get(type(action), self._updates).put(action)

    def _is_short(self, action: Fold | Update) -> bool:
        """True for few elements, if nothing waits for a disk."""
        extent, sums = self._layout.extents[action.extent], list(action.contributions)
        if extent.elems > _SHORT_ELEMS or extent.form.whole:
            return False
        if isinstance(action, Update):
            groups = (pages.group for pages in self._updates_of.of(action.extent))
            if not all(self._store.is_quick(group.number, group.count) for group in groups):
                return False
        elif action.total is not None:
            sums.append(action.total)
        return not any(s.payload.is_spilled for s in sums if isinstance(s.payload, Payload))

    def take_finished(self) -> list[Finished]:
        """Actions finished since the last call. Raises the error of a thread."""
        if self._error is not None:
            raise self._error
        with self._finished_lock:
            finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """End the threads and wait for them."""
        for _, tasks in self._threads:
            tasks.put(None)
        for thread, _ in self._threads:
            thread.join()
        self.versions.close()

    # ---------------------------------------------------------------------- threads

    def _serve(self, tasks: _Queue, pages_max: int) -> None:
        self._kernels.enter_thread()
        scratch = Scratch(self._store.config, self._adder, pages_max)
        while (action := tasks.get()) is not None:
            try:
                self._work[type(action)](action, scratch)
            except BaseException as exc:
                self._error = exc
                self._wake()
                return

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
        if action.extent in self._layout.sheets:
            self._update_sheet(action, scratch)
            return
        wire = self._wire_of(action)
        squares: tuple[float, ...] = ()
        is_finite = are_there = True
        made: tuple[PageGroup, RecordRows] | None = None
        for each in self._updates_of.of(action.extent, action.absent):
            if action.absent and all(each.group.is_idle(action.absent)):
                self._keep_pages(action, each, wire, scratch)
                continue
            if made is not None and is_finite and not action.is_preview:
                self._write(action, *made)
            found, rows = self._update_pages(action, each, wire, scratch)
            squares += found
            is_finite = is_finite and all(map(math.isfinite, found))
            are_there = rows.weights is not None or not wire.has_masters
            made = each.group, rows
        self._hand_out(action, squares, wire, are_there=is_finite and are_there)
        if action.is_preview:
            return
        if made is not None and is_finite:  # else the step is skipped, and its pages are discarded
            self._write(action, *made)
        self._report(lambda: self._core.written(action))

    def _keep_pages(
        self, action: Update, pages: Pages, wire: Outgoing, scratch: Scratch
    ) -> None:  # fmt: skip
        """Pages of an update of which no segment has a gradient: they are neither read nor
        written, but for the weights that are handed out."""
        if wire.target is not None:
            self._copy_weights(pages, action.step, wire, scratch)
        if not action.is_preview:
            with contextlib.suppress(StaleAttempt):  # the attempt was given up; the core knows
                self._store.keep(
                    pages.group.number, pages.group.count, action.step + 1, action.attempt
                )

    def _wire_of(self, action: Update) -> Outgoing:
        # In a step that streams, weights that were placed before its verdict are void.
        again = self._streaming and bool(action.norms)
        return self._wire(action, action.step + 1, needed=action.publish, again=again)

    def _hand_out(
        self, action: Update, squares: tuple[float, ...], wire: Outgoing, *, are_there: bool
    ) -> None:
        """Report an update; `are_there`: it has new weights."""
        published = None
        if are_there:
            published = wire.written(show=not action.is_provisional)
        else:
            wire.given_up()
        if not action.publish:
            published = None  # in its place, where it stays
        in_place = wire.in_place
        if action.is_preview:
            self._report(lambda: self._core.previewed(action, published, in_place=in_place))
        else:
            self._report(lambda: self._core.updated(action, squares, published, in_place=in_place))

    def _update_sheet(self, action: Update, scratch: Scratch) -> None:
        """Update all extents of a sheet; see `sheets.py`."""
        extents = [(each, self._updates_of.of(each.extent)) for each in (*action.others, action)]
        with self._updates_of.whole_turn:
            groups = [each for _, pages in extents for each in pages]
            matrix = Matrix(self._layout, groups)
            squares = [self._gather(each, pages, matrix, scratch) for each, pages in extents]
            is_finite = all(math.isfinite(each) for found in squares for each in found)
            if is_finite:
                start_ns, hyper = SYSTEM_CLOCK.now_ns(), decode_hyper(action.hyper)
                matrix.update(action, hyper, self._updates_of.scale(hyper, action.norms))
                self._span(
                    "update", start_ns, step=action.step, extent=action.extent,
                    chunk=groups[0].group.chunks[0], bytes=matrix.elems * SUM_BYTES,
                )  # fmt: skip
            for (each, pages), found in zip(extents, squares, strict=True):
                wire = self._wire_of(each)
                are_there = is_finite and self._scatter(each, pages, matrix, wire, scratch)
                self._hand_out(each, found, wire, are_there=are_there)
        if not action.is_preview:
            self._report(lambda: self._core.written(action))

    def _gather(
        self, action: Update, pages: Sequence[Pages], matrix: Matrix, scratch: Scratch
    ) -> tuple[float, ...]:
        """Copy an extent of a sheet into its matrix; the squares of its sum."""
        start_ns, read_bytes = SYSTEM_CLOCK.now_ns(), 0
        squares: tuple[float, ...] = ()
        for each in pages:
            group = each.group
            with scratch.adder.terms(action.contributions, group.elems, group.start) as terms:
                squares += self._kernel.fold(terms, None, matrix.total(each))
            own = scratch.rows(group.number, group.count)
            found, nbytes = self._records(group, action.step, own)
            matrix.take(each, *record_views(each.kind, found, each.kernel.state_fields))
            read_bytes += nbytes
        chunk = pages[0].group.chunks[0]
        self._span(
            "read", start_ns, step=action.step, extent=action.extent, chunk=chunk, bytes=read_bytes
        )
        return squares

    def _scatter(
        self, action: Update, pages: Sequence[Pages], matrix: Matrix, wire: Outgoing,
        scratch: Scratch,
    ) -> bool:  # fmt: skip
        """Write the pages of an extent of a sheet, and its weights; True if these are there."""
        are_there = True
        for each in pages:
            group, part = each.group, each.group.part_of(wire.target)
            if part is not None:
                memory, dtype = part
                weights = matrix.weights(each, scratch.weights(group.elems))
                self._kernel.cast(weights, dtype, memory)
            if action.is_preview:
                continue
            rows = self._rows_to_fill(action, group)
            if rows is None:
                rows = scratch.rows(group.number, group.count)
                np.frombuffer(rows.memory, np.uint8)[:] = 0  # what lies between the fields, too
            views = record_views(each.kind, rows, each.kernel.state_fields)
            matrix.put(each, *views, group.absent(action.absent))
            are_there = are_there and (rows.weights is not None or not wire.has_masters)
            self._write(action, group, rows)
        return are_there

    def _records(
        self, group: PageGroup, step: int, own: RecordRows
    ) -> tuple[RecordRows, int]:  # fmt: skip
        """The records of pages: in RAM, or read into `own`; bytes that were read."""
        found = self._store.rows_in_ram(group.number, group.count, step)
        if found is not None:
            return found, 0
        self._store.read_rows(group.number, step, own)
        return own, own.memory.nbytes

    def _update_pages(
        self, action: Update, pages: Pages, wire: Outgoing, scratch: Scratch
    ) -> tuple[tuple[float, ...], RecordRows]:  # fmt: skip
        """Read pages and update them, in RAM if they are there, else in the thread's memory; the
        squares, and the records, which are still to be written."""
        start_ns = SYSTEM_CLOCK.now_ns()
        group, chunk = pages.group, pages.group.chunks[0]
        own = scratch.rows(group.number, group.count)
        found, read_bytes = self._records(group, action.step, own)
        target = self._rows_to_fill(action, group) or own
        read_ns = self._span(
            "read", start_ns, step=action.step, extent=action.extent, chunk=chunk, bytes=read_bytes
        )
        cause = Cause(
            version=action.step + 1, hyper=decode_hyper(action.hyper), norms=action.norms,
            divisor=action.divisor, absent=action.absent,
        )  # fmt: skip
        pages_wanted = () if action.is_preview else self._wanting_sums(group)
        with scratch.adder.terms(
            action.contributions, group.elems, group.start, as_one=bool(pages_wanted)
        ) as terms:
            if pages_wanted:
                self._log_sums(action, pages, cause, pages_wanted, terms)
            squares = self._updates_of.apply(
                pages, cause, terms, found, target, wire=group.part_of(wire.target),
                measure=self._streaming,
            )  # fmt: skip
        self._span(
            "update", read_ns, step=action.step, extent=action.extent, chunk=chunk,
            bytes=group.elems * SUM_BYTES,
        )  # fmt: skip
        return squares, target

    def _wanting_sums(self, group: PageGroup) -> Sequence[int]:
        """The pages of a group, from 0 on, whose store wants their sums."""
        return [
            index for index in range(group.count) if self._store.wants_sum(group.number + index)
        ]

    def _log_sums(
        self, action: Update, pages: Pages, cause: Cause, wanted: Sequence[int],
        terms: Contributions,
    ) -> None:  # fmt: skip
        """Keep the sums of some pages of a group."""
        ((data, dtype),) = terms
        size, notes = len(data) // pages.group.count, notes_of(pages, cause)
        with contextlib.suppress(StaleAttempt):  # the attempt was given up; the core knows
            for index in wanted:
                self._store.log_sum(
                    pages.group.number + index, cause.version, action.attempt,
                    data[index * size : (index + 1) * size], dtype, notes[index],
                )  # fmt: skip

    def _write(self, action: Update, group: PageGroup, rows: RecordRows) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        with contextlib.suppress(StaleAttempt):  # the attempt was given up; the core knows
            self._store.write_rows(group.number, action.step + 1, action.attempt, rows)
        self._span(
            "write", start_ns, step=action.step, extent=action.extent, chunk=group.chunks[0],
            bytes=rows.count * rows.record_bytes,
        )  # fmt: skip
        failpoint("node.after_write")

    def _rows_to_fill(self, action: Update, group: PageGroup) -> RecordRows | None:
        if action.is_preview:
            return None
        try:
            version, attempt = action.step + 1, action.attempt
            return self._store.rows_to_fill(group.number, group.count, version, attempt)
        except StaleAttempt:
            return None  # `write_rows` raises it again

    def _wire(
        self, action: Update | ReadWeights, step: int, *, needed: bool, again: bool = False
    ) -> Outgoing:
        found, places = self._layout.extents[action.extent], self._places
        has_masters = places is not None and places.keeps_masters(action.extent)
        if has_masters and isinstance(action, Update) and action.is_preview:
            places, has_masters = None, False  # they stay as they are
        if places is not None and isinstance(action, Update):
            places.note_made(action.extent, step)
        return Outgoing(
            places, self._sent, action.extent, step, action.attempt,
            dtype=found.wire_dtype, nbytes=found.wire_bytes if needed else 0, again=again,
            is_checked=self._share.replicas > 1, has_masters=has_masters,
        )  # fmt: skip

    def _fold(self, action: Fold, scratch: Scratch) -> None:
        memory, payload = self._sums.take(self._layout.extents[action.extent].sum_bytes)
        start_ns = SYSTEM_CLOCK.now_ns()
        squares: dict[float, tuple[float, ...]] = {}
        for pages in self._updates_of.of(action.extent):
            part = pages.group.part(memory, "float32")
            found = self._fold_pages(action, pages.group, part, scratch.adder)
            for norm_type, of_pages in found.items():
                squares[norm_type] = squares.get(norm_type, ()) + of_pages
        self._span("fold", start_ns, step=action.step, extent=action.extent, bytes=memory.nbytes)
        self._report(lambda: self._folded(action, squares, payload))

    def _fold_pages(
        self, action: Fold, group: PageGroup, memory: memoryview, adder: Adder
    ) -> BlockNorms:
        total = np.frombuffer(memory, np.float32)
        before = None
        if action.total is not None:  # copied: if it was spilled, its memory is free again at once
            assert isinstance(action.total.payload, Payload)
            memory[:] = action.total.payload.part(4 * group.start, 4 * (group.start + group.elems))
            before = total
        found: dict[float, tuple[float, ...]] = {}
        if action.contributions:
            with adder.terms(action.contributions, group.elems, group.start) as contributions:
                found[2.0] = self._kernel.fold(contributions, before, total)
        return found | {each: block_norms(total, each) for each in action.norm_types if each != 2}

    def _folded(self, action: Fold, squares: BlockNorms, payload: Payload) -> Sequence[Any]:
        self._sums_room += 1
        self._start_folds()
        return self._core.folded(action, squares, payload, payload.nbytes)

    def _read(self, action: ReadWeights, scratch: Scratch) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        payload, in_place, places = None, 0, self._places
        if places is not None:
            payload = places.get(action.extent, action.step, action.attempt)
            in_place = places.count
        # If there are masters, others are made by now.
        if payload is None and not (places and places.keeps_masters(action.extent)):
            with contextlib.suppress(VersionMissing):  # decided or aborted meanwhile: not needed
                payload, in_place = self._read_weights(action, scratch)
        self._span(
            "read_weights", start_ns, step=action.step, extent=action.extent,
            bytes=0 if payload is None else payload.nbytes,
        )  # fmt: skip
        self._report(lambda: self._core.weights_read(action, payload, in_place=in_place))

    def _read_weights(
        self, action: ReadWeights, scratch: Scratch
    ) -> tuple[Payload | None, int]:  # fmt: skip
        """The weights and, if they lie in their place, how many there are. Raises
        VersionMissing."""
        decided = self._store.decided
        assert decided is not None
        version = decided.version if action.version is None else action.version
        wire = self._wire(action, action.step, needed=True)
        try:
            for each in self._updates_of.of(action.extent):
                self._copy_weights(each, version, wire, scratch)
            return wire.written(), wire.in_place
        except VersionMissing:
            wire.given_up()
            if action.version is not None:
                raise
        return self._read_weights(action, scratch)  # the next version was decided just now

    def _copy_weights(
        self, pages: Pages, version: int, wire: Outgoing, scratch: Scratch
    ) -> None:  # fmt: skip
        group = pages.group
        target = group.part_of(wire.target)
        assert target is not None
        memory, dtype = target
        rows = self._store.rows_in_ram(group.number, group.count, version)
        records = None if rows is None or rows.weights is not None else rows.records()
        page_bytes = len(memory) // group.count
        for index in range(group.count):
            part = memory[index * page_bytes : (index + 1) * page_bytes]
            page = group.number + index
            if records is not None:
                weights = field_view(pages.kind, records[index], WEIGHT)
                if weights.dtype != np.float32:
                    widen(weights, None, scratch.weights(group.page_elems))
                    weights = scratch.weights(group.page_elems)
                self._kernel.cast(weights, dtype, part)
                continue
            read = partial(self._store.read_field, page, version)
            if dtype == "float32":
                read_values(read, pages.kind.dtype(WEIGHT), WEIGHT, part)
            else:
                weights = scratch.weights(group.page_elems)
                octets = weights.view(np.uint8).data
                read_values(read, pages.kind.dtype(WEIGHT), WEIGHT, octets)
                self._kernel.cast(weights, dtype, part)

    def _load(self, action: LoadPage, _: Scratch) -> None:
        page = self._share.page(action.chunk)
        kind = self._store.config.kind(page)
        # Freed at once: updates in RAM need no memory of the thread, so it is never allocated.
        record = aligned_buffer(kind.record_bytes)
        self._unpack(action, kind, record)
        with contextlib.suppress(StaleAttempt):  # the attempt was given up; the core knows
            self._store.write(page, 0, action.attempt, record)
        self._report(lambda: self._done_with(action.payload, self._core.page_loaded(action)))

    def _fill(self, action: FillPage, scratch: Scratch) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        page = self._share.page(action.chunk)
        kind, record = self._store.config.kind(page), scratch.rows(page, 1).memory
        np.frombuffer(record, np.uint8)[:] = 0
        payload: Any = action.payload
        data, start = payload.view(), 0
        for field in kind.fields:
            at, end = kind.range(field.name)
            record[at:end] = data[start : start + field.field_bytes]
            start += field.field_bytes
        self._store.fill(page, record)
        self._span("fill", start_ns, chunk=action.chunk, bytes=record.nbytes)
        self._report(lambda: self._done_with(action.payload, self._core.page_filled(action)))

    def _unpack(self, action: LoadPage, kind: PageKind, record: memoryview) -> None:
        """Fill a record with what came: weights in float32, then, if there is more, optimizer
        state and counts. An average that did not come is the weights."""
        payload: Any = action.payload
        data, start = payload.view(), 0
        values_bytes = self._layout.chunks[action.chunk].sum_bytes
        for name in (WEIGHT, *self._kernel.state_fields):
            if not kind.has(name):
                continue  # frozen, or one that keeps less
            if start < len(data):
                values = data[start : start + values_bytes]
                start += values_bytes
            elif name == AVERAGE:
                values = data[:values_bytes]
            else:
                continue
            store_values(kind, record, name, np.frombuffer(values, np.float32))
        if start < len(data):
            record[slice(*kind.range(UPDATES))] = data[start:]

    @staticmethod
    def _done_with(payload: Any, actions: Sequence[Any]) -> Sequence[Any]:
        payload.drop()
        return actions

    def _copy(self, action: CopyPage, scratch: Scratch) -> None:
        start_ns, page = SYSTEM_CLOCK.now_ns(), self._share.page(action.chunk)
        kind, record = self._store.config.kind(page), scratch.rows(page, 1).memory
        payload = None
        try:
            self._store.read(page, action.step, record)
        except VersionMissing:  # decided meanwhile: no longer needed
            pass
        else:
            memory, payload = self._sent.take(sum(field.field_bytes for field in kind.fields))
            end = 0
            for field in kind.fields:  # without the gaps between them
                at, _ = kind.range(field.name)
                memory[end : end + field.field_bytes] = record[at : at + field.field_bytes]
                end += field.field_bytes
        self._span("copy", start_ns, step=action.step, chunk=action.chunk, bytes=record.nbytes)
        self._report(lambda: self._core.page_copied(action, payload))

    def _read_field(self, action: ReadField, _: Scratch) -> None:
        self._report(self.versions.read(action))

    def _keep(self, action: KeepPiece, _: Scratch) -> None:
        payload = action.payload
        assert isinstance(payload, Payload)
        rank = action.ranks.bit_length() - 1
        self._attachments.put(action.step + 1, action.attempt, rank, action.piece, payload.view())
        self._report(lambda: self._core.piece_kept(action))

    def _prepare(self, action: Prepare, _: Scratch) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        extra = dict(self._kernels.said())
        if self._tree:
            extra[TREE_KEY] = self._tree
        if action.kept_attempt is not None:
            extra[RECORD_KEY] = self._attachments.seal(action.version, action.kept_attempt)
        self._store.prepare(
            DecidedStep(
                version=action.version,
                attempt=action.attempt,
                epoch=action.epoch,
                job=self._job,
                generation=self._store.generation,
                contributors=tuple(
                    Contributor(rank, 0, action.version) for rank in ranks_of(action.contributors)
                ),
                hyper=action.hyper,
                applied=action.applied,
                norms=action.norms,
                extra=extra,
            )
        )
        digests = self.digests_of(action.version)
        self._span("prepare", start_ns, step=action.version - 1)
        failpoint("node.after_prepare")
        self._report(lambda: self._core.prepared(action, digests))

    def _decide(self, action: Decide, _: Scratch) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
        self._store.decide(action.version, action.attempt)
        self._attachments.note_decided(action.version, self._store.decided)
        if self._places is not None:
            self._places.note_decided(action.version, action.attempt)
        self._span("decide", start_ns, step=action.version - 1)
        failpoint("node.after_decide")
        self._report(lambda: self._core.decided(action))

    def digests_of(self, version: int | None) -> bytes:
        """Of the stripes in a version that is prepared, where other nodes hold them too: they are
        compared. `version`: None: nothing is prepared."""
        if version is None or len(self._share.stripes) == 1:
            return b""
        pages = map(self._share.pages_of, self._share.stripes)
        return b"".join(self._store.digest(each, version) for each in pages)


_REDUCE: Final[dict[float, Callable[..., Any]]] = {
    1.0: np.add.reduceat, math.inf: np.maximum.reduceat
}  # fmt: skip


def block_norms(total: F32Array, norm_type: float) -> tuple[float, ...]:
    """The sum of magnitudes (`norm_type` 1) or the largest one (infinity) of each block of a sum.

    Shapes: float32 [C] -> one float64 for every 4,096 elements; NaN where a block has one.
    The kernels compute the squares of the 2-norm as they add. Clipping by another norm is rare, so
    it takes another pass over the sum, here.
    """
    starts = np.arange(0, total.size, NORM_BLOCK_ELEMS)
    found = _REDUCE[norm_type](np.abs(total), starts, dtype=np.float64)
    return tuple(found.tolist())
