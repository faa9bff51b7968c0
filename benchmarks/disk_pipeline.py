"""The arm of the disk benchmark that is ours: the real pipeline and store, and a row of updates."""

from __future__ import annotations

import queue
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from luwu.aggregate import FLOAT32, make_aggregator
from luwu.base.closing import Closing
from luwu.base.digest import WeightsDigest
from luwu.base.errors import StateError
from luwu.base.events import Recorder
from luwu.base.quantities import format_bytes
from luwu.layout import Extent, Layout, Parameter, Unit
from luwu.protocol.contribution import Contribution
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.stored import WEIGHT
from switch_emu.node.core.actions import Decide, Prepare, Update
from switch_emu.node.kernels import Arrays, Run, UpdateCall
from switch_emu.node.kernels.make import make_kernel
from switch_emu.node.page_updates import Kernels, note_bytes, redo_of
from switch_emu.node.pages import field_view, store_config, weights_digest
from switch_emu.node.pipeline import Pipeline, Stored
from switch_emu.node.plan import EXTENT_AUTO_BYTES_MAX, NodePlan, default_extent_chunks, plan_node
from switch_emu.node.scratch import aligned_floats
from switch_emu.process.payload import Buffers, Payload
from switch_emu.store import (
    DecidedStep,
    Durability,
    FilePageStore,
    MemoryPageStore,
    PageStore,
    TieredPageStore,
    aligned_buffer,
)
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.sums import SumShape

BUDGET_CHUNKS = 128
"""The default chunk leaves 64 to 127 chunks a budget up to 128 MiB, and more above."""
UNITS = 8
STATE = ("m", "v")
HYPER = StepHyper(
    groups=(
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8,
         "maximize": False},
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One state on disk and how it is worked on."""

    params: int
    chunk_bytes: int
    durability: Durability
    updates_count: int | None

    @property
    def name(self) -> str:
        """For the table."""
        return f"{format_bytes(self.chunk_bytes)} {self.durability}"

    @property
    def description(self) -> Description:
        """A model of as many equal units as fit, one parameter each."""
        elems = self.params // UNITS
        names = [f"p{index}" for index in range(UNITS)]
        layout = Layout(
            parameters=tuple(Parameter(name=name, shape=(elems,)) for name in names),
            units=tuple(Unit(name=name, parameters=(n,)) for n, name in enumerate(names)),
            chunk_bytes=self.chunk_bytes,
            extent_chunks=self.plan.extent_chunks,
        )
        return Description(layout=layout, optimizer="adamw", update="streaming", state_fields=STATE)

    @property
    def plan(self) -> NodePlan:
        """What a node would do with this chunk, beside workers on its host."""
        budget_bytes = BUDGET_CHUNKS * self.chunk_bytes
        extent_chunks = default_extent_chunks(
            budget_bytes, self.chunk_bytes, EXTENT_AUTO_BYTES_MAX, world_size=2, has_switch=True,
            in_arenas=True,
        )  # fmt: skip
        found = plan_node(
            budget_bytes=budget_bytes, chunk_bytes=self.chunk_bytes, world_size=2, has_switch=True,
            extent_chunks=extent_chunks, in_arenas=True,
        )  # fmt: skip
        return (
            found
            if self.updates_count is None
            else replace(found, updates_count=self.updates_count)
        )


def initial(page: int, elems: int) -> Any:
    """Weights before the first step."""
    return np.random.default_rng(page).standard_normal(elems, dtype=np.float32)


class Gradients:
    """A gradient for every extent, other ones each: windows into one array."""

    def __init__(self, elems_max: int) -> None:
        self._values = aligned_floats(2 * elems_max)  # as folded sums are
        self._values[:] = np.random.default_rng(7).standard_normal(2 * elems_max, np.float32)
        self._span = elems_max

    def of(self, extent: Extent) -> Any:
        """float32 [elems of the extent]; read-only use."""
        start = extent.index * 1024 % self._span
        return self._values[start : start + extent.elems]


class PipelineArm(Closing):
    """The node's pipeline and store, and in place of the core a row of updates."""

    groups = ()
    """No switch has summed anything."""

    def __init__(
        self, directory: Path, case: Case, *, in_ram: bool = False, slots: int = 0
    ) -> None:
        """`in_ram`: all pages are, and with `slots` beside a log of so many."""
        self._description = case.description
        self._layout = self._description.layout
        self._gradients = Gradients(max(extent.elems for extent in self._layout.extents))
        self._kernel = make_kernel("adamw", STATE, cache=None).kernel
        self._hyper = encode_hyper(HYPER)
        self.config = store_config(self._description)
        file = FilePageStore.create(directory / "state", self.config, durability=case.durability)
        self.direct_io = file.direct.enabled
        self._store: PageStore = TieredPageStore(file, self.config.state_bytes * in_ram)
        if slots:
            file.redo = redo_of(self.config)
            file.keep_log(SumShape(self.config, slots, note_bytes(self._layout)))
            self._store = LoggedPageStore(file, MemoryPageStore(self.config, in_place=True))
        self._load()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        core: Any = self  # only the answers below are called
        stored = Stored(
            store=self._store,
            attachments=AttachmentFiles(None, synced=False, decided=None),
            buffers=Buffers(lambda nbytes: memoryview(bytearray(nbytes))),
        )
        self._pipeline = Pipeline(
            core, stored, self._description, job=1, kernels=Kernels.of(self._description),
            aggregator=make_aggregator(FLOAT32, 1),
            plan=case.plan,
            recorder=Recorder(role="node", printed=None), wake=lambda: self._wake.put(None),
        )  # fmt: skip
        self._under_way_max = case.plan.updates_max
        self._under_way = 0
        self._step = 0
        self._is_decided = False

    def _load(self) -> None:
        for page in range(self.config.page_count):
            kind = self.config.kind(page)
            record = aligned_buffer(kind.record_bytes)
            weights = field_view(kind, record, WEIGHT)
            weights[:] = initial(page, weights.size)
            self._store.write(page, 0, 0, record)
        self._store.prepare(DecidedStep(version=0, attempt=0))
        self._store.decide(0, 0)

    def run(self, steps: int) -> None:
        """Update every extent, prepare and decide; `steps` times."""
        for _ in range(steps):
            extents = iter(self._layout.extents)
            self._under_way = 0
            while True:
                while self._under_way < self._under_way_max:
                    extent = next(extents, None)
                    if extent is None:
                        break
                    self._under_way += 1
                    self._pipeline.start(self._update(extent))
                if not self._under_way:
                    break
                self._answer()
            version = self._step + 1
            self._is_decided = False
            self._pipeline.start(
                Prepare(version=version, attempt=0, epoch=0, contributors=3, applied=True,
                        norms=(1.0,), hyper=self._hyper, kept_attempt=None)
            )  # fmt: skip
            while not self._is_decided:
                self._answer()
            self._step = version

    @property
    def written_bytes(self) -> int:
        """Bytes of pages and sums that reached the disk so far."""
        return self._store.stats.bytes_written

    def check(self) -> None:
        """Raises StateError unless the weights are those of the kernel alone."""
        if weights_digest(self._store, self._layout) != self._expected_digest():
            raise StateError("the pipeline's weights are not those of the update kernel alone")

    def close(self) -> None:
        """Stop the threads and close the store."""
        self._pipeline.close()
        self._store.close()

    def updated(self, update: Any, squares: Any, weights: Any, **told: Any) -> list[Any]:
        """The core's answer: nothing to do."""
        return []

    def written(self, update: Any) -> list[Any]:
        """The core's answer: the next extent may start."""
        self._under_way -= 1
        return []

    def prepared(self, prepare: Prepare, digests: bytes) -> list[Any]:
        """The core's answer: decide."""
        self._pipeline.start(Decide(prepare.version, prepare.attempt))
        return []

    def decided(self, decide: Decide) -> list[Any]:
        """The core's answer: the step is over."""
        self._is_decided = True
        return []

    def _answer(self) -> None:
        self._wake.get()
        for finished in self._pipeline.take_finished():
            finished()

    def _update(self, extent: Extent) -> Update:
        grad = self._gradients.of(extent)
        payload = Payload(memoryview(grad.view(np.uint8)))
        return Update(
            extent=extent.index, step=self._step, attempt=0, divisor=2.0, norms=(),
            hyper=self._hyper, publish=False,
            contributions=(Contribution(3, 2.0, True, "float32", payload, payload.nbytes),),
            absent=0,
        )  # fmt: skip

    def _expected_digest(self) -> str:
        digest = WeightsDigest()
        for unit, parameter in enumerate(self._layout.parameters):
            digest.begin(parameter.name, parameter.dtype, parameter.shape)
            missing = parameter.elems
            for index in self._layout.unit_extents[unit]:
                extent, first = self._layout.extents[index], 0
                for page in extent.chunks:
                    stop = first + self._layout.chunks[page].elems
                    weights = self._updated_alone(page, self._gradients.of(extent)[first:stop])
                    digest.add(weights[: min(missing, weights.size)])
                    missing, first = missing - weights.size, stop
        return digest.hexdigest()

    def _updated_alone(self, page: int, values: Any) -> Any:
        """Weights of a page after all steps, each with the same gradient."""
        elems = values.size
        state = tuple(np.zeros(elems, np.float32) for _ in STATE)
        arrays = Arrays(initial(page, elems), state)
        grad = memoryview(values.view(np.uint8))
        for count in range(self._step):
            self._kernel.update(UpdateCall(
                contributions=[(grad, "float32")], old=arrays, new=arrays,
                runs=[Run(start=0, stop=elems, hyper=HYPER.groups[0], updates_count=count)],
                divisor=2.0, scale=1.0, wire=None, measure=False,
            ))  # fmt: skip
        return arrays.weights
