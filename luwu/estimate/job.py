"""A configuration made into a job, its plan and its estimate; looks at the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luwu.base.config import RunConfig
from luwu.base.limits import MIB
from luwu.estimate.activations import activation_bytes
from luwu.estimate.plan import Estimate, estimate
from luwu.estimate.shape import JobShape
from luwu.launch.serving import (
    Sizes,
    chosen_transport,
    node_plan,
    own_slots,
    tree_of,
)
from luwu.launch.supervisor import threads_per_worker
from luwu.launch.switch_memory import widest_plan
from luwu.layout import Layout, Parameter, StoredForm, Unit
from luwu.measure.floors import Floors, core_count, measure_floors
from luwu.measure.timing import Samples
from switch_emu.node.plan import NodePlan

if TYPE_CHECKING:
    from workers.options import Options

SIDES: Final = 2
"""A state is measured on a file as large as its two sides at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A job with what was measured for it and what that comes to."""

    job: JobShape
    plan: NodePlan
    floors: Floors
    estimate: Estimate


def plan_gpt(
    config: RunConfig, sizes: Sizes, *, state: Path | None, samples: Samples
) -> Planned:  # fmt: skip
    """Plan the built-in GPT as `compare` would train it. Raises ConfigError if it cannot be."""
    plan = node_plan(config, sizes)
    job = gpt_job(config, sizes, is_in_ram=state is None)
    floors = floors_for(job, plan, state=state, samples=samples)
    if floors.device == "cpu":
        floors = replace(floors, compute_s=compute_seconds(config, job, samples))
    return Planned(job=job, plan=plan, floors=floors, estimate=estimate(job, plan, floors))


def gpt_job(config: RunConfig, sizes: Sizes, *, is_in_ram: bool) -> JobShape:
    """The job of `compare`. Raises ConfigError."""
    options = gpt_options(config)
    transport = chosen_transport(config)
    layout = gpt_layout(options, config.data, sizes.chunk_bytes, sizes.extent_chunks)
    slow_ms = (config.compute_ms or 0.0) * 2 * len(layout.units)
    return JobShape(
        layout=layout,
        workers=config.workers,
        transport=transport,
        tokens_per_step=config.workers * options.batch * options.context,
        has_switch=not config.no_switch,
        slot_count=own_slots(config),
        reshard_after_forward=config.reshard_after_forward is not False,
        update="streaming" if config.max_grad_norm is None else "at_step",
        durability=config.durability,
        is_in_ram=is_in_ram,
        worker_threads=threads_per_worker(config.workers),
        switch=widest_plan(
            config, tree_of(config), layout.extent_bytes, in_arenas=transport == "shm"
        ),
        activation_bytes=activation_bytes(
            options.gpt(_vocab(config.data)), batch=options.batch
        ),
        compute_seconds_min=slow_ms / 1000,
    )  # fmt: skip


def gpt_options(config: RunConfig) -> Options:
    """Options for `workers/train.py`."""
    from workers.options import Options

    asked = {name: getattr(config, name) for name in ("layers", "width", "batch", "context")}
    return replace(
        Options(
            arm="luwu",
            dtype=config.dtype,
            state_dtype=config.state_dtype,
            master_dtype=config.master_dtype,
        ),
        **{name: value for name, value in asked.items() if value is not None},
    )


def parameters_count(config: RunConfig) -> int:
    """Parameters of the built-in GPT, counted without storage."""
    from workers.gpt import without_storage

    model = without_storage(gpt_options(config).gpt(_vocab(config.data)))
    return sum(parameter.numel() for parameter in model.parameters())


def compute_seconds(config: RunConfig, job: JobShape, samples: Samples) -> float | None:
    """Seconds of a step of all workers, on all cores; None for a model with large blocks."""
    from luwu.measure.gpt_floor import gpt_seconds
    from workers.data import BYTE_VOCAB

    options = gpt_options(config)
    return gpt_seconds(
        options.gpt(BYTE_VOCAB), batch=options.batch, workers=job.workers,
        threads=job.worker_threads, cores=core_count(), samples=samples,
    )  # fmt: skip


def gpt_layout(
    options: Options, data: Path | None, chunk_bytes: int, extent_chunks: int = 1
) -> Layout:
    """Where every parameter of the built-in GPT lies, as `fully_shard` of its blocks lays it out.

    The model is made without storage, and a text is not read: its vocabulary is bytes.
    """
    from torch import nn

    from workers.gpt import without_storage

    model = without_storage(options.gpt(_vocab(data)))
    names = [name for name, _ in model.named_parameters()]
    units: dict[str, list[int]] = {"root": []}
    for index, name in enumerate(names):
        parts = name.split(".")
        units.setdefault(".".join(parts[:2]) if parts[0] == "blocks" else "root", []).append(index)
    tables = {
        id(parameter)
        for module in model.modules() if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }  # fmt: skip

    def parameter(name: str, each: nn.Parameter) -> Parameter:
        stored = options.stored.of(each.numel(), is_embedding=id(each) in tables)
        return Parameter(
            name=name, shape=tuple(each.shape), wire_dtype=options.dtype,
            state_dtype=stored.state, master_dtype=stored.master,
        )  # fmt: skip

    return Layout(
        parameters=tuple(parameter(name, each) for name, each in model.named_parameters()),
        units=tuple(Unit(name=name, parameters=tuple(each)) for name, each in units.items()),
        chunk_bytes=chunk_bytes,
        extent_chunks=extent_chunks,
    )


def _vocab(data: Path | None) -> int:
    """Different tokens; a text is not read: its tokens are bytes."""
    from workers.data import BYTE_VOCAB, TOKEN_SUFFIX, load_corpus

    is_tokens = data is not None and data.suffix == TOKEN_SUFFIX
    return load_corpus(data).vocab if is_tokens else BYTE_VOCAB


def floors_for(job: JobShape, plan: NodePlan, *, state: Path | None, samples: Samples) -> Floors:
    """Measure what this job needs, for no longer than its size is worth."""
    store = job.store
    record_bytes = max(kind.record_bytes for kind in store.kinds)
    worth = max(8 * MIB, SIDES * store.state_bytes)
    largest = max(job.layout.chunks, key=lambda chunk: chunk.elems)
    return measure_floors(
        directory=None if state is None else state.absolute().parent,
        page_bytes=record_bytes // 4096 * 4096,
        page_elems=largest.elems,
        stored=StoredForm(largest.state_dtype, largest.master_dtype),
        threads_count=plan.updates_count,
        pulls_count=plan.reads_count,
        pages_together=plan.pages_together,
        workers_count=job.workers,
        dtype=job.layout.chunks[0].wire_dtype,
        transport=job.transport,
        samples=Samples(
            copy_bytes=min(samples.copy_bytes, worth),
            disk_bytes=min(samples.disk_bytes, worth),
            seconds=samples.seconds,
        ),
    )
