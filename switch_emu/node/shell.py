"""The optimizer node as a process: a transport, a `NodeCore`, its pipeline and its store.

    workers or switch --- transport --- [own SwitchCore] --- NodeCore --- pipeline --- store

With `--no-switch` the node is its own switch: the same `SwitchCore`, connected to the node's core
by `core/with_switch.py`, so both ways share one code path and one arithmetic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from luwu.aggregate import make_aggregator
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError, StateError
from luwu.base.events import NODE_ABOUT, Recorder
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.layout import Share
from luwu.protocol.epoch import Epoch
from luwu.transport.interface import Transport
from luwu.wire.description import Description, parse_description
from luwu.wire.messages import Push, Weights
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import (
    BeginFilling,
    CopyPage,
    Discard,
    GiveUp,
    NodeNumber,
    OpenStore,
    PinVersion,
    PreparedVersion,
    ReadField,
    ReadWeights,
    RecordAttempt,
    ReplaceAttached,
    Spill,
    StoreFacts,
    Unpin,
)
from switch_emu.node.core.with_switch import NodeWithSwitch
from switch_emu.node.page_updates import Kernels
from switch_emu.node.pipeline import TREE_KEY, Pipeline, Stored
from switch_emu.node.plan import NodePlan
from switch_emu.node.storage import NodeStorage
from switch_emu.process.counting import CountersFile
from switch_emu.process.loop import Loop
from switch_emu.process.payload import Buffers, Payload
from switch_emu.process.places import WeightsPlaces
from switch_emu.store import PageStore
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.spill import SpillFile
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Sum
from switch_emu.switch.shell import combine, is_encoded, unsummed

_LOOK_AGAIN_NS = 500_000


class NodeShell(Loop):
    """Runs one optimizer node."""

    def __init__(
        self, transport: Transport, core: NodeCore, recorder: Recorder, storage: NodeStorage, *,
        job: int, plan: NodePlan, node: NodeNumber | None = None,
        own_switch: SwitchCore | None = None, counters: CountersFile | None = None,
    ) -> None:  # fmt: skip
        self._pair = None if own_switch is None else NodeWithSwitch(core, own_switch)
        super().__init__(transport, recorder, self._pair or core, counters=counters)
        self.core = core
        self._storage = storage
        self._job, self._plan, self._node = job, plan, node or NodeNumber()
        self._attachments: AttachmentFiles | None = None
        self.own_switch = own_switch
        self._combined = Buffers(lambda nbytes: np.empty(nbytes, np.uint8).data)
        """Memory of encoded sums of the own switch; float32 sums need none."""
        self.store: PageStore | None = None
        self.description: Description | None = None
        self.spill: SpillFile | None = None
        self._pipeline: Pipeline | None = None
        self._places: WeightsPlaces | None = None
        self._waiting_reads: deque[ReadWeights | CopyPage] = deque()
        self._waiting_fields: deque[ReadField] = deque()

    def open_existing(self) -> None:
        """Open the store, if it exists."""
        store = self._storage.open_store()
        if store is not None:
            self._open(store)

    def _open(self, store: PageStore) -> None:
        prepared = self._resolve_prepared(store)
        self._use(store)
        self._report_opened(prepared)

    def _use(self, store: PageStore) -> None:
        """Start the threads that work on the pages of a store."""
        self.store = store
        self.description = parse_description(store.config.description, self._plan.extent_chunks)
        job = self.description
        kernels = Kernels.of(job)
        self._places = self._storage.make_places(self.description)
        self._attachments = self._storage.make_attachments(store.decided)
        self._pipeline = Pipeline(
            self.core,
            Stored(
                store=store,
                attachments=self._attachments,
                buffers=Buffers(self._reserve_outgoing),
                places=self._places,
                share=Share(job.layout, self._node.number, self._node.replicas),
            ),
            self.description,
            job=self._job,
            kernels=kernels,
            aggregator=make_aggregator(self.description.aggregate, self.core.world_size),
            plan=self._plan,
            recorder=self.recorder,
            wake=self.transport.wake,
        )
        units = zip(job.layout.units, job.layout.unit_extents, strict=True)
        self.recorder.event(  # what the extents are of, for the readers of spans
            NODE_ABOUT, level="DEBUG", units=[[unit.name, len(extents)] for unit, extents in units]
        )  # fmt: skip
        decided = store.decided
        tree = decided.extra.get(TREE_KEY, "") if decided is not None and decided.version else None
        self.recorder.event(
            "node.opened", generation=store.generation, attempt=store.attempt,
            version=None if decided is None else decided.version, tree=tree,
            pages=store.config.page_count, kernel=kernels.made.kernel.name,
            kernel_version=kernels.made.kernel.version, kernel_reason=kernels.made.reason,
            weights="in place" if self._places is not None else "copied",
        )  # fmt: skip
        steps_count, seconds = store.redone
        if steps_count:
            self.recorder.event(
                "node.redone", steps=steps_count, ms=round(1e3 * seconds),
                text=f"the last {steps_count} steps were made again from their sums",
            )  # fmt: skip
        for note in store.notes:
            self.recorder.event("node.survived", level="WARNING", text=note)

    def _report_opened(self, prepared: PreparedVersion | None = None) -> None:
        """Tell the core what the open store holds."""
        store = self.store
        assert store is not None
        assert self._pipeline is not None
        assert self.description is not None
        decided = store.decided
        facts = StoreFacts(
            description=store.config.description,
            generation=store.generation,
            attempt=store.attempt,
            epoch=decided.epoch if decided is not None else 0,
            job=decided.job if decided is not None else self._job,
            version=None if decided is None else decided.version,
            applied=decided is None or decided.applied,
            norms=(decided and decided.norms) or (0.0,),
            decided_attempt=0 if decided is None else decided.attempt,
            prepared=prepared,
            prepared_digests=self._pipeline.digests_of(prepared.version if prepared else None),
            recorded=Epoch(*store.epoch),
            is_in_place=store.is_in_place,
            spare_bytes=self._storage.spare_bytes(self.description),
        )
        self.do(self.core.tick(SYSTEM_CLOCK.now_ns()))  # so that it knows the time
        self.do(self.core.store_opened(facts))

    def _resolve_prepared(self, store: PageStore) -> PreparedVersion | None:
        """Resolve the version that a crash left prepared: a single node decides it, one of several
        returns it, as all of them together know whether it is decided.
        """
        prepared = store.prepared
        if self._node.is_alone:
            if prepared is not None:
                store.decide(prepared.version, prepared.attempt)
            store.record_attempt(store.attempt + 1)
        elif prepared is not None:
            return PreparedVersion(
                prepared.version, prepared.attempt, prepared.applied, prepared.norms or (0.0,),
                sum(1 << each.rank for each in prepared.contributors),
            )  # fmt: skip
        return None

    def close(self) -> None:
        """Stop the pipeline; close store and spill file; release a claim that was not used."""
        if self._pipeline is not None:
            self._pipeline.close()
        if self.spill is not None:
            self.spill.close()
        if self._attachments is not None:
            self._attachments.close()
        if self.store is not None:
            self.store.close()
        self._storage.close()

    # ---------------------------------------------------------------------- Loop

    def do(self, actions: Sequence[Any]) -> None:
        super().do(actions if self._pair is None else self._pair.outward(actions))

    def do_own(self, action: Any) -> None:
        match action:
            case Sum():
                assert self.own_switch is not None
                if is_encoded(action):
                    total = combine(action, self._combined, self.own_switch.aggregator)
                else:
                    total = unsummed(action)  # the update adds: one pass less
                now_ns = SYSTEM_CLOCK.now_ns()
                self.do(self.own_switch.summed(now_ns, action, total, total.nbytes))
            case OpenStore(description):
                store = self._make_store(description)
                if store is not None:
                    self._open(store)
            case GiveUp(text, code):
                raise StateError(f"{text} (the state is {self._storage.where})", code=code)
            case RecordAttempt(attempt, epoch):
                assert self.store is not None
                self.store.record_attempt(attempt, epoch)
            case ReplaceAttached(version, rank, Payload() as payload):
                assert self.store is not None
                assert self._attachments is not None
                self._attachments.replace(self.store.decided, version, rank, payload.view())
            case Discard(attempt):
                assert self.store is not None
                self.store.abort(attempt - 1)
            case Spill(payload, is_raw):
                self._spill(payload, is_raw=is_raw)
            case BeginFilling(description, version):
                self._begin_filling(description, version)
            case ReadWeights() | CopyPage():
                self._waiting_reads.append(action)  # started by `background`
            case ReadField():
                self._waiting_fields.append(action)  # so is this
            case PinVersion(reader):
                assert self._pipeline is not None
                self.do(self._pipeline.versions.pin(reader))
            case Unpin(reader):
                assert self._pipeline is not None
                self._pipeline.versions.unpin(reader)
            case _:
                assert self._pipeline is not None
                self._pipeline.start(action)

    def background(self) -> None:
        if self._pipeline is not None:
            for finished in self._pipeline.take_finished():
                self.do(finished())
        while True:
            while self._pair is not None and self._pair.is_waiting:
                self.do(self._pair.carry(SYSTEM_CLOCK.now_ns()))
            if self._pipeline is not None:  # what was carried too: nothing else wakes the loop
                self._start_reads(self._pipeline)
            if self._pair is None or not self._pair.is_waiting:
                return

    def next_tick_ns(self) -> int | None:
        if (self._waiting_reads or self._waiting_fields) and self._sending:
            # The transport does not report finished sends; check again soon.
            return SYSTEM_CLOCK.now_ns() + _LOOK_AGAIN_NS
        return super().next_tick_ns()

    # ---------------------------------------------------------------------- helpers

    def payload_bytes(self) -> dict[str, int]:
        """Gradients in, and weights out, so far, as one switch or worker sees them."""
        below = self.links if self._pair is None else self._pair.links
        return {
            "into_node": below.total(Push).payload_bytes_received,
            "out_of_node": below.total(Weights).payload_bytes_sent,
        }

    def _begin_filling(self, encoded: bytes, version: int) -> None:
        """Empty the store, or make it, and go on from a version without a page."""
        store = self.store or self._make_store(encoded)
        if store is not None:
            if self.store is None:
                self._use(store)
            store.begin_filling(version)
            self._report_opened()

    def _make_store(self, encoded: bytes) -> PageStore | None:
        """The store of a new job; None if it is rejected, which the core learns."""
        try:
            return self._storage.make_store(parse_description(encoded, self._plan.extent_chunks))
        except StateError:
            raise  # the disk is at fault, not the description
        except LuwuError as exc:
            self.recorder.event("node.refused", level="ERROR", text=str(exc))
            self.end_with(exc)
            self.do(self.core.store_refused(str(exc)))
            return None

    def _start_reads(self, pipeline: Pipeline) -> None:
        """Start reads of weights while outgoing payloads are within their budget."""
        for _ in range(len(self._waiting_reads)):
            read = self._waiting_reads.popleft()
            if self._places is not None and isinstance(read, ReadWeights):
                placed = self._places.get(read.extent, read.step, read.attempt)
                if placed is not None:
                    self.do(self.core.weights_read(read, placed, in_place=self._places.count))
                    continue
            if self._waiting_bytes() < self._plan.outgoing_bytes:
                pipeline.start(read)
            else:
                self._waiting_reads.append(read)
        while self._waiting_fields and self._waiting_bytes() < self._plan.outgoing_bytes:
            pipeline.start(self._waiting_fields.popleft())

    def _reserve_outgoing(self, nbytes: int) -> memoryview:
        """Memory for weights that are sent as a copy; small ones are sent at once, as a frame.

        In shared memory they would use up the budget until every worker has copied them (a step of
        16 KiB chunks took twice as long).
        """
        if nbytes < ZERO_COPY_BYTES_MIN:
            return memoryview(bytearray(nbytes))
        return self.transport.reserve(nbytes)

    def _waiting_bytes(self) -> int:
        return sum(payload.nbytes for _, payload in self._sending if not payload.is_shared)

    def _spill(self, payload: Any, *, is_raw: bool) -> None:
        assert isinstance(payload, Payload)
        assert self.description is not None
        if payload.is_shared and not is_raw:
            return  # in memory of others, and waits for no rank
        if self.spill is None:
            self.spill = self._storage.make_spill(self.description)
        payload.spill(self.spill)
