"""The optimizer's pipeline: a fixed set of threads that read, add, update, write and publish pages.

Each thread takes a page through all its stages; while one waits for the disk another computes, so
the stages of different pages overlap and the buffers are bounded by the number of threads
(step-centric, as the paper has it: a fixed crew over the whole step, not one pipeline a layer).
Which page is taken when is the core's decision; nothing is decided here.

Threads never touch a core: what they finished is a function that the shell's loop calls.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.events import Recorder
from luwu.base.failpoints import failpoint
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, decode_hyper
from switch_emu.node.actions import Decide, Fold, LoadPage, Prepare, ReadWeights, Update
from switch_emu.node.core import NodeCore
from switch_emu.node.pages import WEIGHT, field_view, updates_view
from switch_emu.node.update import (
    block_squares,
    clip_scale,
    kernel_for,
    to_wire,
    update_page,
)
from switch_emu.payload import Payload
from switch_emu.store import (
    Contributor,
    DecidedStep,
    PageStore,
    StaleAttempt,
    VersionMissing,
    aligned_buffer,
)
from switch_emu.switch.aggregate import F32Array, sum_in_order
from switch_emu.switch.slots import Contribution

Finished = Callable[[], Sequence[Any]]
"""To be called by the shell's loop: tells the core, returns its actions."""


class Pipeline:
    """Does a node's work on pages; see the module."""

    def __init__(
        self, core: NodeCore, store: PageStore, description: Description, *, job: int,
        updates_count: int, reads_count: int, recorder: Recorder, wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self._core, self._store, self._job = core, store, job
        self._layout = description.layout
        self._kernel = kernel_for(description.optimizer, description.state_fields)
        self._streaming = description.update == "streaming"
        self._recorder, self._wake = recorder, wake
        self._record_bytes_max = max(kind.record_bytes for kind in store.config.kinds)
        self._elems_max = max(chunk.elems for chunk in self._layout.chunks)
        self._finished: deque[Finished] = deque()
        self._error: BaseException | None = None
        self._hyper: tuple[bytes, StepHyper] | None = None
        # Two queues: a pull must not stand behind a row of updates.
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
        """Do an action of the core in a thread."""
        tasks = self._reads if isinstance(action, ReadWeights) else self._updates
        tasks.put(action)

    def take_finished(self) -> list[Finished]:
        """What was finished since the last call. Raises what a thread failed with."""
        if self._error is not None:
            raise self._error
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def close(self) -> None:
        """Let the threads end and wait for them."""
        for thread in self._threads:
            (self._reads if thread.name == "luwu-read" else self._updates).put(None)
        for thread in self._threads:
            thread.join()

    # ---------------------------------------------------------------------- threads

    def _serve(self, tasks: queue.SimpleQueue[Any]) -> None:
        torch.set_num_threads(1)  # of this thread: pages are the unit of parallel work
        buffers = _Buffers(self._record_bytes_max, self._elems_max)
        while True:
            action = tasks.get()
            if action is None:
                return
            try:
                self._do(action, buffers)
            except BaseException as exc:
                self._error = exc
                self._wake()
                return

    def _do(self, action: Any, buffers: _Buffers) -> None:
        match action:
            case Update():
                self._update(action, buffers)
            case ReadWeights():
                self._read(action, buffers)
            case Fold():
                self._fold(action, buffers)
            case LoadPage():
                self._load(action, buffers)
            case Prepare():
                self._prepare(action)
            case Decide():
                self._store.decide(action.version, action.attempt)
                failpoint("node.after_decide")
                self._tell(lambda: self._core.decided(action))
            case _:
                raise AssertionError(f"unknown action {action}")

    def _tell(self, finished: Finished) -> None:
        self._finished.append(finished)
        self._wake()

    def _span(self, name: str, start_ns: int, **fields: object) -> int:
        now_ns = SYSTEM_CLOCK.now_ns()
        self._recorder.span(name, start_ns, now_ns, **fields)
        return now_ns

    def _update(self, action: Update, buffers: _Buffers) -> None:
        chunk = self._layout.chunks[action.chunk]
        kind = self._store.config.kind(action.chunk)
        record = buffers.record[: kind.record_bytes]
        named = {"step": action.step, "chunk": action.chunk}
        start_ns = SYSTEM_CLOCK.now_ns()
        self._store.read(action.chunk, action.step, record)
        read_ns = self._span("read", start_ns, **named)
        grad = buffers.grad[: chunk.elems]
        _add(action.contributions, grad)
        squares = block_squares(grad) if self._streaming else ()
        weights = field_view(kind, record, WEIGHT)
        published = None
        is_finite = bool(np.isfinite(squares).all())
        if is_finite:
            hyper = self._decoded(action.hyper)
            updates = updates_view(kind, record)
            update_page(
                kernel=self._kernel,
                weights=weights,
                state=tuple(field_view(kind, record, n) for n in self._kernel.state_fields),
                grad=grad,
                runs=self._layout.group_runs(action.chunk),
                hyper=hyper,
                divisor=action.divisor,
                scale=clip_scale(hyper, action.grad_norm),
                updates_count=int(updates[0]),
            )
            updates += 1
            if action.publish:
                published = Payload(to_wire(weights, chunk.wire_dtype))
        update_ns = self._span("update", read_ns, **named)
        self._tell(lambda: self._core.updated(action, squares, published))
        if is_finite:  # else the step will be skipped, and its pages are discarded anyway
            try:
                self._store.write(action.chunk, action.step + 1, action.attempt, record)
            except StaleAttempt:
                pass  # the attempt was given up meanwhile; the core knows
        self._span("write", update_ns, **named)
        failpoint("node.after_write")
        self._tell(lambda: self._core.written(action))

    def _fold(self, action: Fold, buffers: _Buffers) -> None:
        elems = self._layout.chunks[action.chunk].elems
        total = np.empty(elems, np.float32)
        _add(action.contributions, total)
        if action.total is not None:
            before = _array(action.total)
            np.add(before, total, out=total)
        squares = block_squares(total)
        payload = Payload(total.view(np.uint8).data)
        self._tell(lambda: self._core.folded(action, squares, payload, payload.nbytes))

    def _read(self, action: ReadWeights, buffers: _Buffers) -> None:
        chunk = self._layout.chunks[action.chunk]
        start_ns = SYSTEM_CLOCK.now_ns()
        weights = buffers.grad[: chunk.elems]
        octets = weights.view(np.uint8).data
        try:
            self._read_weights(action, octets)
        except VersionMissing:  # decided or aborted meanwhile: nobody waits for it any more
            self._tell(lambda: self._core.weights_read(action, None))
            return
        payload = Payload(to_wire(weights, chunk.wire_dtype))
        self._span("read_weights", start_ns, step=action.step, chunk=action.chunk)
        self._tell(lambda: self._core.weights_read(action, payload))

    def _read_weights(self, action: ReadWeights, octets: memoryview) -> None:
        if action.version is not None:
            self._store.read_field(action.chunk, action.version, WEIGHT, octets)
            return
        while True:
            decided = self._store.decided
            assert decided is not None
            try:
                self._store.read_field(action.chunk, decided.version, WEIGHT, octets)
                return
            except VersionMissing:
                continue  # the next version was decided just now

    def _load(self, action: LoadPage, buffers: _Buffers) -> None:
        kind = self._store.config.kind(action.chunk)
        record = buffers.record[: kind.record_bytes]
        np.frombuffer(record, np.uint8)[:] = 0
        payload = action.payload
        assert isinstance(payload, Payload)
        values = np.frombuffer(payload.view(), np.float32)
        field_view(kind, record, WEIGHT)[:] = values
        self._store.write(action.chunk, 0, self._store.attempt, record)
        self._tell(lambda: self._loaded(action, payload))

    def _loaded(self, action: LoadPage, payload: Payload) -> Sequence[Any]:
        payload.drop()
        return self._core.page_loaded(action.chunk)

    def _prepare(self, action: Prepare) -> None:
        start_ns = SYSTEM_CLOCK.now_ns()
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
            )
        )
        self._span("prepare", start_ns, step=action.version - 1)
        failpoint("node.after_prepare")
        self._tell(lambda: self._core.prepared(action))

    def _decoded(self, hyper: bytes) -> StepHyper:
        held = self._hyper
        if held is None or held[0] != hyper:
            held = self._hyper = (hyper, decode_hyper(hyper))
        return held[1]


class _Buffers:
    """What one thread works in."""

    def __init__(self, record_bytes: int, elems: int) -> None:
        self.record = aligned_buffer(record_bytes)
        self.grad: F32Array = np.empty(elems, np.float32)


def _array(said: Contribution) -> F32Array:
    assert isinstance(said.payload, Payload)
    return np.frombuffer(said.payload.view(), np.float32)


def _add(contributions: Sequence[Contribution], out: F32Array) -> None:
    views = []
    for said in contributions:
        assert isinstance(said.payload, Payload)
        views.append(said.payload.view())
    sum_in_order(views, [said.dtype for said in contributions], out)
