"""The worker's SmartNIC as a process part: an I/O thread that owns the transport and a `NicCore`.

    training thread            I/O thread
    pull(), push(), ... ---->  commands ---> NicCore ---> transport
    wait(handle)        <----  Done, Judged, Aborted ...

A push whose gradients are still on their way from a GPU goes by way of another thread, which waits
for them (`threads.py`). The training thread never touches a socket; the I/O thread only copies
bytes into tensors. So push and pull overlap with the compute. Every method may raise `StepAborted`,
once per abort; earlier commands of the training thread are not sent under the new attempt.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from luwu.aggregate import FLOAT32
from luwu.base.clock import SYSTEM_CLOCK, new_incarnation
from luwu.base.closing import Closing
from luwu.base.dtypes import DTYPES
from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    LuwuError,
    RemoteProtocolError,
    StepAborted,
)
from luwu.base.events import Recorder
from luwu.base.failpoints import failpoint
from luwu.base.limits import GRADIENT_BYTES, KEEP_PIECES_MAX, PAYLOAD_BYTES_MAX, UNFLUSHED_BYTES_MAX
from luwu.base.retry import RetryPolicy
from luwu.base.tree import ranges_text
from luwu.layout import Layout
from luwu.nic.board import Board, board_of
from luwu.nic.core import NicCore
from luwu.nic.core import actions as nic
from luwu.nic.encoder import PATIENCE_S, Encoder
from luwu.nic.memory import (
    Cell,
    Cells,
    ExtentGradient,
    ExtentRuns,
    IncomingWeights,
    SharedWeights,
    private_memory,
)
from luwu.nic.reader import StateReader
from luwu.nic.threads import Copies, Handle, Mailbox, NicCounters, Ready, StepHandle
from luwu.protocol.actions import PARENT, Drop, Note, Send
from luwu.transport.interface import Delivery, PeerDown, PeerFailed, PeerGone, PeerUp, Transport
from luwu.wire.altered import AlteredWeights
from luwu.wire.codec import decode, encode
from luwu.wire.description import Description
from luwu.wire.link_counts import DATA_KINDS, LinkCounts
from luwu.wire.messages import Push, Weights

_RECEIVE_NS_MAX = 500_000_000
LEAVE_NS: Final = 2_500_000_000
"""How long a worker that leaves waits for a parent that is gone, or does not know it."""


@dataclass(slots=True)
class _Command:
    do: Callable[[int], list[nic.Action]]
    era: int
    done: threading.Event | None = None
    gradients: Sequence[ExtentGradient] = ()
    """Gradients to push, whose cells are given back if the command is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """The worker and job that a NIC belongs to."""

    job: int
    rank: int
    world_size: int
    incarnation: int | None = None
    """Number of this start, larger than the one before; None: taken from the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSettings:
    """Settings of a job that its workers must know."""

    chunk_bytes: int
    extent_chunks: int = 1
    """Chunks that travel together at most."""
    reshard_after_forward: bool | None = None
    """Default of `fully_shard`; None: free all but the root."""
    prefetch_units: int = 2
    aggregate: str = FLOAT32
    """The aggregator."""
    optimizer_nodes: int = 1
    """Optimizer nodes that share the pages."""
    gradient_bytes: int = GRADIENT_BYTES
    """Limit of gradients under way: written and not received."""


class Nic(Closing):
    """Push, pull and wait for one worker. One training thread at a time uses it."""

    has_joined: ClassVar[bool] = False
    """True once a NIC of this process has joined its job."""

    def __init__(
        self, transport: Transport, worker: WorkerIdentity, settings: NicSettings, *,
        endpoint: str, recorder: Recorder | None = None, connect_timeout_s: float = 60.0,
        grace_s: float = 600.0, make_reader: Callable[[], StateReader] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        """`make_reader`: makes a reader of the same job, with its own connection; `retry`: timeouts
        for emulated links. Raises ConfigError or ConnectionFailed; if the endpoint cannot be
        dialled, the transport is closed."""
        rank, world_size = worker.rank, worker.world_size
        self.rank, self.world_size = rank, world_size
        self.chunk_bytes, self.extent_chunks = settings.chunk_bytes, settings.extent_chunks
        self.optimizer_nodes = settings.optimizer_nodes
        self.reshard_after_forward = settings.reshard_after_forward
        self.prefetch_units = settings.prefetch_units
        self.recorder = recorder or Recorder(role="worker", printed=None)
        self.links = LinkCounts()
        self._aborts_count = 0
        self._make_reader = make_reader
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout_s
        self._transport = transport
        self._core = NicCore(
            job=worker.job, rank=rank, world_size=world_size,
            incarnation=new_incarnation() if worker.incarnation is None else worker.incarnation,
            retry=retry,
        )  # fmt: skip
        self._mailbox = Mailbox(
            rank=rank, grace_s=grace_s, recorder=self.recorder, waits_for=self._core.waits_for,
        )  # fmt: skip
        self._altered = AlteredWeights(f"worker {rank}")
        self._layout: Layout
        self._runs: list[ExtentRuns] = []
        """The runs of each unit's extents."""
        self._encoder = Encoder(
            settings.aggregate, rank=rank, world_size=world_size, recorder=self.recorder,
            cells=Cells(transport.reserve, self._mailbox.wait_until, math.inf),
        )  # fmt: skip
        is_plain = self._encoder.aggregator.is_plain
        self.cells = Cells(
            transport.reserve if is_plain else private_memory, self._mailbox.wait_until,
            settings.gradient_bytes, math.inf if is_plain else PATIENCE_S,
        )  # fmt: skip
        self._copies = Copies(self._copy_failed)
        self._commands: deque[_Command] = deque()
        self._board: Board | None = None
        """Where weights are looked for; None: they are asked for."""
        self._found_bytes = 0
        """Bytes of weights that were found without a message."""
        self.is_closed = False
        """True if `close` was called."""
        try:
            transport.dial(PARENT, endpoint)
        except BaseException:
            transport.close()
            raise
        self._thread = threading.Thread(target=self._serve, name=f"luwu-nic-{rank}", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------- training thread

    @property
    def counters(self) -> NicCounters:
        """Bytes sent and received so far."""
        return NicCounters(
            push_bytes=self.links.total(Push).payload_bytes_sent,
            pull_bytes=self.links.total(*DATA_KINDS).payload_bytes_received + self._found_bytes,
            header_bytes=self.links.total().header_bytes,
            aborts_count=self._aborts_count,
        )

    def connect(self) -> None:
        """Wait for the parent to answer. Raises ConnectionFailed after the connect timeout."""
        self._mailbox.wait_until(
            lambda: self._mailbox.is_connected, f"{self._endpoint} to answer", None,
            limit_s=self._connect_timeout_s,
        )  # fmt: skip

    def join(self, description: Description) -> nic.Joined:
        """Become a member with this job; blocks until all ranks have joined.

        The name of the aggregator becomes part of the description that the ranks agree on.
        """
        description = self._encoder.described(description)
        encoded = description.to_bytes()
        layout = self._layout = description.layout
        self._runs = [_runs(layout, extents) for extents in layout.unit_extents]
        aggregator = self._encoder.aggregator
        self._command(
            lambda now: self._core.join(
                now, encoded, description.hash, aggregator, layout.extent_chunks
            )
        )
        self._mailbox.wait_until(
            lambda: self._mailbox.joined is not None, "all ranks to join", None
        )
        assert self._mailbox.joined is not None
        Nic.has_joined = True
        return self._mailbox.joined

    @property
    def is_loaded(self) -> bool:
        """True if the network had weights when we joined, or when an attempt was last aborted."""
        return self._mailbox.joined is not None and self._mailbox.joined.loaded

    @property
    def attempt(self) -> int:
        """The attempt that is under way; if left out, the last one this rank counted in."""
        return self._core.out.attempt

    @property
    def counted(self) -> int:
        """Bitmap of the ranks that count in the attempt; if left out, of its last one."""
        return self._core.membership.counted

    def load(self, chunks: Iterable[tuple[int, memoryview]]) -> None:
        """Send initial float32 weights, chunk by chunk; blocks until all are received."""
        under_way: deque[Handle] = deque()
        for chunk, data in chunks:
            handle = self._new("load", 0, self._layout.chunks[chunk].unit)
            handle.about = {"chunk": chunk, "bytes": data.nbytes}
            entry = nic.Gradient(
                index=chunk, payload=data, payload_bytes=data.nbytes, dtype="float32"
            )
            self._command(
                lambda now, h=handle, e=entry: self._core.load(now, h, [e])  # type: ignore[misc]
            )
            under_way.append(handle)
            while len(under_way) > 8:  # the caller may make the chunks as they are sent
                self.wait(under_way.popleft())
        for handle in under_way:
            self.wait(handle)

    def pull(
        self, step: int, part: int, unit: int, memory: Callable[[], memoryview], *,
        in_place: bool = False,
    ) -> Handle:  # fmt: skip
        """Ask for a unit's weights: its whole flat vector in the wire dtype.

        `memory` returns a buffer of that size. The I/O thread calls it when needed; the buffer must
        stay valid until the handle is done or forgotten. With `in_place` the weights may stay
        in the sender's memory: the handle's `shared` refers to them and belongs to the caller.
        """
        handle = self._new("pull", step, unit)
        handle.shared = self._look(step, unit) if in_place else None
        if handle.shared is not None:
            handle.about, handle.done = {"bytes": handle.shared.nbytes}, True
            self._found_bytes += handle.shared.nbytes
            self._note(handle)
            return handle

        def pull(now: int) -> list[nic.Action]:
            runs, extents = self._runs[unit], self._layout.extents
            handle.about = {"bytes": sum([extents[index].wire_bytes for index in runs])}
            handle.incoming = IncomingWeights(memory, runs, in_place=in_place)
            return self._core.pull(now, handle, step, part, tuple(runs))

        self._give(_Command(pull, handle.era))
        return handle

    def _look(self, step: int, unit: int) -> SharedWeights | None:
        """The weights of a unit, if they are in shared memory and may be used."""
        board, core = self._board, self._core
        if board is None:
            return None
        return board.find(unit, step, core.out.attempt, judged_step=core.requests.judged_step)

    def forget(self, handle: Handle) -> None:
        """Cancel a pull: after the return its memory is no longer written."""
        try:
            if not handle.done:
                self._command(lambda now: self._core.forget(handle), wait=True)
        finally:
            if handle.shared is not None:
                handle.shared.release()

    def push(
        self, step: int, part: int, unit: int, gradients: Sequence[ExtentGradient] | None,
        dtype: str, *, last: bool, weight: float = 1.0, ready: Ready | None = None,
    ) -> Handle:  # fmt: skip
        """Send gradients of some of a unit's extents, in cells taken from `cells`.

        None: this rank has no gradient for any of them. The cells belong to the push from now on.
        The gradients are in them once `ready` returns, which another thread calls; pushes keep
        their order.
        """
        failpoint("worker.before_push")
        if gradients is None:
            extents = self._layout.trainable_extents(unit)
            gradients = [ExtentGradient(index, None) for index in extents]
        try:
            handle = self._new("push", step, unit)
        except BaseException:
            self._copies.add(ready, lambda: _give_back(gradients))
            raise

        def push(now: int) -> list[nic.Action]:
            entries = [
                nic.Gradient(
                    index=index, payload=cell, dtype=dtype, absent=absent,
                    payload_bytes=0 if cell is None else cell.data.nbytes,
                )
                for index, cell, absent in gradients
            ]  # fmt: skip
            handle.about = {
                "extents": ranges_text([entry.index for entry in entries]),
                "bytes": sum([entry.payload_bytes for entry in entries]),
            }
            return self._core.push(now, handle, step, part, entries, weight=weight, last=last)

        command = _Command(push, handle.era, gradients=gradients)
        self._copies.add(ready, lambda: self._hand_over(handle, command))
        return handle

    def begin(self, step: int, hyper: bytes) -> None:
        """State the hyper-parameters of a step before its first push."""
        self._command(lambda now: self._core.begin(now, step, hyper))

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool = False) -> StepHandle:
        """Declare a step's pushes complete; returns at once. `skip`: skip it on all ranks."""
        failpoint("worker.before_commit")
        self._copies.wait()
        self.recorder.flush()
        self._mailbox.raise_if_aborted()
        handle = self._mailbox.new_step(step)
        self._command(lambda now: self._core.commit(now, step, parts, hyper, skip=skip))
        return handle

    def cancel(self, text: str) -> None:
        """Request an abort of the attempt on all ranks; `StepAborted` follows."""
        self._copies.wait()
        self._command(lambda now: self._core.cancel(now, text))

    def wait_for_copies(self, until: Callable[[], bool] = lambda: False) -> None:
        """Return when no `ready` of a push is under way, or the condition holds after one."""
        self._copies.wait(until)

    def wait(self, handle: Handle) -> None:
        """Block until a handle is done. Raises StepAborted if its attempt was aborted."""
        if handle.done:
            return
        what = f"the {handle.name} of step {handle.step}, unit {handle.unit}"
        self._mailbox.wait_until(lambda: handle.done, what, handle.era)

    def attach(self, step: int, data: bytes, part: int = 0) -> None:
        """Attach bytes to a step whose hyper-parameters announce it. A later part replaces what was
        attached late to a decided step; blocks until it is stored."""
        size, count = (PAYLOAD_BYTES_MAX, 1) if part else (self.chunk_bytes, KEEP_PIECES_MAX)
        pieces = [data[start : start + size] for start in range(0, len(data), size)] or [data]
        if len(pieces) > count:
            raise ConfigError(
                f"{len(data)} bytes cannot be attached to step {step}: at most {count * size} fit"
                + ("" if part else "; attach less, or use larger chunks (--chunk)")
            )
        handle = self._new("attach", step, 0)
        self._command(lambda now: self._core.attach(now, step, pieces, part, handle))
        if part:
            self.wait(handle)

    def open_reader(self) -> StateReader:
        """Open the newest decided version for reading; close the reader."""
        assert self._make_reader is not None, "this NIC was made without a way to read"
        reader = self._make_reader()
        try:
            reader.open()
        except BaseException:
            reader.close()
            raise
        return reader

    @property
    def has_left(self) -> bool:
        """True if the parent has noted that this worker leaves."""
        return self._mailbox.has_left

    def fail(self, error: LuwuError) -> None:
        """End with this error: the training thread raises it."""
        self._mailbox.fail(error)

    def leave(self) -> None:
        """Leave the job and wait until the parent has noted it; may be repeated.

        Our steps are decided: a parent that is gone costs seconds and a warning, and no error.
        """
        if self._mailbox.has_left:
            return
        self.recorder.event("worker.leaves", rank=self.rank, step=self._core.out.step)
        known_ns = SYSTEM_CLOCK.now_ns()

        def is_over() -> bool:
            nonlocal known_ns
            now_ns = SYSTEM_CLOCK.now_ns()
            if self._mailbox.down_ns is None and not self._core.uplink.asks("hello"):
                known_ns = now_ns  # it waits for other ranks to leave
            return self._mailbox.has_left or now_ns - known_ns > LEAVE_NS

        while not is_over():
            try:
                self._command(self._core.leave)
                self._mailbox.wait_until(is_over, "the parent to take note that we leave", None)
            except StepAborted:
                continue
            except (ConnectionFailed, DeadlineError):
                break
        if not self._mailbox.has_left:
            self.recorder.event(
                "worker.left_unnoted", level="WARNING", rank=self.rank,
                trouble=self._mailbox.trouble, consequence="none: its steps are decided",
            )  # fmt: skip

    def close(self) -> None:
        """Stop the threads and close the transport; may be repeated."""
        self._copies.close()
        if not self.is_closed:
            self.is_closed = True
            self._transport.wake()
            self._thread.join()

    def _new(self, name: str, step: int, unit: int) -> Handle:
        self._mailbox.raise_if_aborted()
        board = self._board  # the I/O thread forgets it with an attempt
        if board is not None and board.was_overtaken:
            what = "the attempt that went on without this rank, whose weights were written over"
            self._mailbox.wait_until(lambda: False, what, None)
        return Handle(name, step, unit, self._mailbox.known_era)

    def _command(self, do: Callable[[int], list[nic.Action]], *, wait: bool = False) -> None:
        self._mailbox.raise_if_aborted()
        done = threading.Event() if wait else None
        self._give(_Command(do, self._mailbox.known_era, done))
        while done is not None and not done.wait(timeout=1.0):
            if not self._thread.is_alive():
                return

    def _hand_over(self, handle: Handle, command: _Command) -> None:
        handle.asked_ns = SYSTEM_CLOCK.now_ns()
        self._give(command)

    def _give(self, command: _Command) -> None:
        self._commands.append(command)
        self._transport.wake()

    def _copy_failed(self, error: Exception) -> None:
        failed = LuwuError(f"the gradients of worker {self.rank} cannot be copied: {error!r}")
        failed.__cause__ = error
        self._mailbox.fail(failed)

    # ---------------------------------------------------------------------- I/O thread

    def _serve(self) -> None:
        try:
            self._transport.gather()
            while not self.is_closed:
                self._run_commands()
                self._transport.flush()
                item = self._transport.receive(self._timeout_ns())
                if item is None:
                    self._mailbox.notify()  # a receiver may have given cells back
                self._take_turn(item)
                self._do(self._core.tick(SYSTEM_CLOCK.now_ns()))
        except LuwuError as exc:
            self._mailbox.fail(exc)
        except Exception as exc:
            error = LuwuError(f"the I/O thread of worker {self.rank} failed: {exc!r}")
            error.__cause__ = exc
            self._mailbox.fail(error)
        finally:
            self._mailbox.fail(ConnectionFailed(f"the NIC of worker {self.rank} was closed"))
            self._transport.close()
            for command in self._commands:
                if command.done is not None:
                    command.done.set()

    def _take_turn(self, item: Any) -> None:
        """Handle what has come, until nothing is left."""
        nbytes = 0
        while item is not None:
            if isinstance(item, Delivery):
                nbytes += sum([buffer.nbytes for buffer in item.buffers])
            self._handle(item)
            if nbytes >= UNFLUSHED_BYTES_MAX:
                self._transport.flush()
                nbytes = 0
            item = self._transport.receive(0)

    def _timeout_ns(self) -> int:
        tick_ns = self._core.next_tick_ns()
        if tick_ns is None:
            return _RECEIVE_NS_MAX
        return max(0, min(_RECEIVE_NS_MAX, tick_ns - SYSTEM_CLOCK.now_ns()))

    def _run_commands(self) -> None:
        while self._commands:
            command = self._commands.popleft()
            if command.era == self._mailbox.era:
                self._do(command.do(SYSTEM_CLOCK.now_ns()))
            else:
                _give_back(command.gradients)
            if command.done is not None:
                command.done.set()

    def _handle(self, item: Any) -> None:
        match item:
            case Delivery():
                self._received(item)
            case PeerUp():
                self._do(self._core.reconnected(SYSTEM_CLOCK.now_ns()))
                self._mailbox.is_connected, self._mailbox.trouble = True, ""
                self._mailbox.down_ns = None
                self._mailbox.notify()
            case PeerDown(_, reason):
                self._mailbox.trouble = f"the connection to {self._endpoint} is gone: {reason}"
                self._mailbox.down_ns = SYSTEM_CLOCK.now_ns()
            case PeerFailed(_, error, final):
                self._mailbox.trouble = str(error)
                if final:
                    self._mailbox.fail(ConnectionFailed(f"worker {self.rank}: {error}"))

    def _received(self, delivery: Delivery) -> None:
        buffers = delivery.buffers
        header_bytes = len(delivery.header)
        try:
            message = decode(delivery.header, len(buffers))
        except RemoteProtocolError as exc:
            self.links.received(PARENT, None, header_bytes, sum(each.nbytes for each in buffers))
            delivery.release()
            self.recorder.event("worker.garbage", level="WARNING", rank=self.rank, text=str(exc))
            return
        payload_bytes = buffers[0].nbytes if buffers else 0
        self.links.received(PARENT, type(message), header_bytes, payload_bytes)
        now_ns = SYSTEM_CLOCK.now_ns()
        if message.IS_DATA and buffers:
            checked = message if isinstance(message, Weights) and message.checksum else None
            # If no pull waits for them, their place may hold other weights by now.
            if checked and self._core.awaits(checked) and self._altered.has(checked, buffers[0]):
                delivery.release()
                self._ask_again(message)
                return
            self._do(self._core.received(now_ns, message, delivery, payload_bytes))
            return
        payload = bytes(buffers[0]) if buffers else None
        delivery.release()
        self._do(self._core.received(now_ns, message, payload))

    def _ask_again(self, message: Any) -> None:
        """Weights differ from their checksum: log it, and ask for them again."""
        self.recorder.event(
            "weights.altered", level="WARNING", rank=self.rank, extent=message.index,
            step=message.step, consequence="not used, and asked for again",
        )  # fmt: skip
        self._do(self._core.unanswered(SYSTEM_CLOCK.now_ns()))

    def _do(self, actions: list[nic.Action]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(message, payload)
                case Drop(payload):
                    self._drop(payload)
                case nic.Fill():
                    self._fill(action)
                case nic.Done(handle):
                    self._finish(handle)
                case nic.Measure():
                    statement = self._encoder.measure(action)
                    self._do(self._core.measured(SYSTEM_CLOCK.now_ns(), action, statement))
                case nic.Encode():
                    cell = self._encoder.encode(action)
                    now_ns = SYSTEM_CLOCK.now_ns()
                    self._do(self._core.encoded(now_ns, action, cell, cell.data.nbytes))
                case Note(name, fields, level):
                    self.recorder.event(name, level=level, **dict(fields))
                case _:
                    if isinstance(action, nic.Aborted):
                        self._lose_attempt(action)
                    self._mailbox.post(action)

    def _lose_attempt(self, aborted: nic.Aborted) -> None:
        self._board = None
        self._aborts_count += 1
        self.recorder.event("worker.aborted", step=aborted.step)

    def _drop(self, payload: Any) -> None:
        if isinstance(payload, Delivery):
            payload.release()
        elif isinstance(payload, Cell):
            payload.is_needed = False
            self._mailbox.notify()

    def _send(self, message: Any, payload: Any) -> None:
        data = payload.data if isinstance(payload, Cell) else payload
        header = encode(message)
        try:
            sent = self._transport.send(PARENT, header, () if data is None else (data,))
        except PeerGone:
            return  # it is repeated until answered
        payload_bytes = 0 if data is None else memoryview(data).nbytes
        self.links.sent(PARENT, type(message), len(header), payload_bytes)
        if isinstance(payload, Cell):
            payload.sends.append(sent)

    def _fill(self, fill: nic.Fill) -> None:
        handle = fill.handle
        assert isinstance(handle, Handle)
        assert isinstance(fill.payload, Delivery)
        assert handle.incoming is not None
        extent = self._layout.extents[fill.extent]
        nbytes = fill.payload.buffers[0].nbytes
        if nbytes != extent.wire_bytes:
            raise RemoteProtocolError(
                f"weights of extent {fill.extent}: {nbytes} bytes came, expected "
                f"{extent.wire_bytes}; the parent has another layout"
            )
        is_placed = self._is_placed(fill.extent, handle.step, fill.payload, count=fill.in_place)
        handle.incoming.add(fill.extent, fill.payload, is_placed=is_placed)

    def _is_placed(self, extent: int, step: int, delivery: Delivery, *, count: int) -> bool:
        """True if weights came where this worker looks; the first that did say where that is.

        `count`: places of the extent, as their sender says; 0: they lie in none.
        """
        if not (count and delivery.is_shared) or len(self._layout.extents[extent].runs) > 1:
            return False
        weights = delivery.buffers[0]
        if self._board is None:
            self._board = board_of(
                self._layout, weights, extent=extent, step=step, attempt=self._core.out.attempt,
                count=count,
            )  # fmt: skip
        return self._board is not None and self._board.is_place(extent, step, weights)

    def _finish(self, handle: Any) -> None:
        self._note(handle)
        if handle.incoming is not None:
            incoming, handle.incoming = handle.incoming, None
            stays, board, attempt = incoming.finish(), self._board, self._core.out.attempt
            if board is not None and stays:
                handle.shared = board.named(handle.unit, handle.step, attempt)
            elif board is not None:
                board.let_go(incoming.placed, handle.step, attempt)
        handle.done = True
        self._mailbox.notify()

    def _note(self, handle: Handle) -> None:
        self.recorder.span(
            handle.name, handle.asked_ns, SYSTEM_CLOCK.now_ns(), step=handle.step,
            unit=self._layout.units[handle.unit].name, rank=self.rank, **handle.about,
        )  # fmt: skip


def _runs(layout: Layout, extents: Iterable[int]) -> ExtentRuns:
    found = {}
    for index in extents:
        extent = layout.extents[index]
        scale = DTYPES[extent.wire_dtype].nbytes
        found[index] = tuple((start * scale, elems * scale) for start, elems in extent.runs)
    return found


def _give_back(gradients: Iterable[ExtentGradient]) -> None:
    for gradient in gradients:
        if gradient.cell is not None:
            gradient.cell.is_needed = False
