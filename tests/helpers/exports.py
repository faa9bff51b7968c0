"""States of small jobs, their exports, and all that a state holds.

Jobs are those of `local_job.py`: two groups, a frozen parameter, a scalar, ragged ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luwu.checkpoint.copying import making_store, write_pages
from luwu.checkpoint.export_state import Exported, ExportOptions, export_state
from luwu.checkpoint.import_state import Imported, import_state
from luwu.checkpoint.source import RestingState
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import field_view, store_config, weights_digest
from switch_emu.store import DecidedStep, FilePageStore
from tests.helpers.local_job import GROUPS, KIB, MIB, Job, Worker, cluster_for

BUDGET = 8 * MIB

OPTIMIZERS: dict[str, tuple[tuple[str, ...], tuple[dict[str, Any], ...]]] = {
    "adamw": (("m", "v"), GROUPS),
    "sgd": (
        ("momentum",),
        tuple(
            {"lr": lr, "momentum": 0.9, "dampening": dampening, "weight_decay": 0.01}
            | {"nesterov": False, "maximize": False}
            for lr, dampening in ((1e-2, 0.0), (3e-3, 0.5))
        ),
    ),
    "lion": (
        ("m",),
        tuple(
            {"lr": lr, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False}
            for lr in (1e-3, 3e-4)
        ),
    ),
}


@dataclass(frozen=True)
class OptimizerJob(Job):
    """A job with an optimizer of choice."""

    optimizer: str = "adamw"

    @property
    def description(self) -> Description:
        return Description(
            layout=self.layout, optimizer=self.optimizer, update=self.update,
            state_fields=OPTIMIZERS[self.optimizer][0], agreement={"seed": "3"},
        )  # fmt: skip

    def hyper(self, step: int) -> StepHyper:
        groups = OPTIMIZERS[self.optimizer][1]
        changed = tuple(group | {"lr": group["lr"] / (1 + step)} for group in groups)
        return StepHyper(groups=changed, max_grad_norm=self.max_grad_norm)


def train(job: Job, state: Path, tmp_path: Path, *, stop_at: int | None = None) -> str:
    """Train in a state directory up to a step; the digest of the weights."""
    with cluster_for(job, tmp_path, state=state, resume=state.exists()) as cluster:
        cluster.run(Worker(job, stop_at=stop_at))
        return cluster.weights_digest()


def first_weights(job: Job, state: Path, tmp_path: Path) -> None:
    """Join, load and pull a unit: then the first weights are decided, and no step is."""
    worker = Worker(job)

    def join_only(nic: Nic) -> None:
        nic.join(job.description)
        if nic.rank == 0:
            nic.load(worker._initial_chunks())
        worker._pull(nic, 0, 0, 0)

    with cluster_for(job, tmp_path, state=state) as cluster:
        cluster.run(join_only)


def export(state: Path, out: Path, **options: Any) -> Exported:
    with RestingState(state) as source:
        return export_state(source, out, ExportOptions(memory_budget_bytes=BUDGET, **options))


def bring(source: Path, state: Path, *, chunk_kib: int | None = None, **options: Any) -> Imported:
    chunk_bytes = None if chunk_kib is None else chunk_kib * KIB
    return import_state(
        source, state, chunk_bytes=chunk_bytes, memory_budget_bytes=BUDGET, **options
    )


@dataclass(frozen=True)
class Values:
    """All that a state holds of each parameter, whatever its chunks."""

    fields: dict[tuple[str, str], bytes]
    updates: dict[str, set[int]]
    record: Any
    attempt: int
    digest: str


def values_of(state: Path) -> Values:
    """Read a state with the store's own means, page by page."""
    fields: dict[tuple[str, str], bytearray] = {}
    updates: dict[str, set[int]] = {}
    with FilePageStore.open(state, read_only=True) as store:
        store.redo = redo_of(store.config)
        with RestingState(state) as resting:
            layout = resting.description.layout
        version = store.decided.version
        for chunk in layout.chunks:
            kind = store.config.kind(chunk.index)
            record = memoryview(bytearray(kind.record_bytes))
            store.read(chunk.index, version, record)
            for number, part in enumerate(layout.segments(chunk.index)):
                name = layout.parameters[part.parameter].name
                for item in kind.fields:
                    start, stop = kind.range(item.name)
                    if item.name == "updates":
                        count = int(np.frombuffer(record[start:stop], np.int64)[number])
                        updates.setdefault(name, set()).add(count)
                        continue
                    values = np.frombuffer(record[start:stop], np.float32)
                    cut = values[part.chunk_start : part.chunk_start + part.elems]
                    fields.setdefault((name, item.name), bytearray()).extend(cut.tobytes())
        found = {key: bytes(data) for key, data in fields.items()}
        digest = weights_digest(store, layout)
        return Values(found, updates, store.decided, store.attempt, digest)


def write_state(path: Path, description: Description, weights: Mapping[str, NDArray[Any]]) -> None:
    """A state at rest that no job has made, of step 0."""
    record, config = DecidedStep(version=0, attempt=0), store_config(description)
    layout = description.layout

    def fill(page: int, whole: memoryview) -> None:
        whole[:] = bytes(len(whole))
        stored = field_view(config.kind(page), whole, "weight")
        for each in layout.segments(page):
            values = weights[layout.parameters[each.parameter].name].reshape(-1)
            part = values[each.parameter_start : each.parameter_start + each.elems]
            stored[each.chunk_start : each.chunk_start + each.elems] = part

    with making_store(path, config, record, {}, attempt=0) as store:
        write_pages(store, record, fill, lambda: False)


def padding_of(state: Path) -> bytes:
    """What lies between parameters, in all arrays of all pages."""
    found = bytearray()
    with RestingState(state) as source:
        layout = source.description.layout
        for chunk in layout.chunks:
            fields = source.description.state_fields if chunk.trainable else ()
            for field in ("weight", *fields):
                values = np.empty(chunk.elems, np.float32)
                source.read_field(chunk.index, field, values.view(np.uint8).data)
                is_padding = np.ones(chunk.elems, bool)
                for part in layout.segments(chunk.index):
                    is_padding[part.chunk_start : part.chunk_start + part.elems] = False
                found += values[is_padding].tobytes()
    return bytes(found)


def flip(file: Path, offset: int) -> None:
    """Change one byte."""
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x40
    file.write_bytes(data)
