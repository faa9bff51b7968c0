"""Whole jobs in one process, by every way to run: real shells, transports, stores; no torch trains.

A `Way` is what `luwu train` could be asked for. The workers are those of
`tests/helpers/local_job.py`: their gradients are single additions and multiplications of what they
pulled, so the digest of the weights at the end is the same on every machine, and every wrong byte
on the way changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from luwu.aggregate import FLOAT32
from luwu.layout import ALL_FLOAT32, Layout, StoredForm
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper
from luwu.wire.stored import AVERAGE
from switch_emu.node.pages import weights_digest
from switch_emu.store.striped import StripedPages
from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.local_job import GROUPS, KIB, LARGE, Job, Worker, cluster_for, make_layout
from tests.simulate.trees import TREES

OPTIMIZERS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "adamw": ("adamw", ("m", "v"), {}),
    "adam": ("adam", ("m", "v"), {"decoupled_weight_decay": False}),
    "sgd": ("sgd", (), {"momentum": 0.0, "dampening": 0.0, "nesterov": False}),
    "sgd with momentum": (
        "sgd", ("momentum",), {"momentum": 0.9, "dampening": 0.1, "nesterov": False}
    ),
    "nesterov": ("sgd", ("momentum",), {"momentum": 0.9, "dampening": 0.0, "nesterov": True}),
    "lion": ("lion", ("m",), {}),
}  # fmt: skip
"""Name -> (update, state fields, hyper-parameters beside those of `GROUPS`)."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a job is run; the defaults are one way, and each table entry changes some."""

    world_size: int = 2
    transport: str = "ipc"
    has_switch: bool = True
    tree: str | None = None
    optimizer_nodes: int = 1
    chunk_kib: int = 16
    update: str = "streaming"
    optimizer: str = "adamw"
    form: StoredForm = ALL_FLOAT32
    """How pages keep the state."""
    has_average: bool = False
    wire_dtype: str = "float32"
    aggregate: str = FLOAT32
    max_grad_norm: float | None = None
    poison_step: int | None = None
    cancel_step: int | None = None
    stop_at: int | None = None
    """The job is stopped before this step, and resumed."""
    is_stored: bool = True
    """False: the state is in RAM only."""
    is_tight: bool = False
    """The node has memory for a handful of chunks."""
    has_slots: bool = True

    @property
    def workers(self) -> int:
        """How many there are: as the tree says, if there is one."""
        return self.world_size if self.tree is None else TREES[self.tree].workers


@dataclass(frozen=True)
class _Job(Job):
    """The job of the workers, with the optimizer that a way names."""

    way: Way = field(default_factory=Way)

    @property
    def description(self) -> Description:
        update, state_fields, _ = OPTIMIZERS[self.way.optimizer]
        state_fields += (AVERAGE,) * self.way.has_average
        return Description(
            layout=self.layout, optimizer=update, update=self.update, state_fields=state_fields
        )

    def hyper(self, step: int) -> StepHyper:
        more = OPTIMIZERS[self.way.optimizer][2]
        names = ("lr", "weight_decay", "maximize") if "momentum" in more else tuple(GROUPS[0])
        if self.way.optimizer == "lion":
            names = ("lr", "beta1", "beta2", "weight_decay", "maximize")
        if self.way.has_average:
            more = {**more, "average_decay": 0.9}
        found = super().hyper(step)
        groups = tuple({**{n: group[n] for n in names}, **more} for group in found.groups)
        return replace(found, groups=groups)


def digest_of(way: Way, directory: Path) -> str:
    """Run a job in an empty directory; the digest of its weights at the end."""
    if way.stop_at is not None:
        run(way, directory, stop_at=way.stop_at)
    digest = run(way, directory, resume=way.stop_at is not None)
    return digest_at(way, directory) if way.is_stored else digest


def run(way: Way, directory: Path, *, resume: bool = False, stop_at: int | None = None) -> str:
    """Run a job, or go on with it, to its end or to a step; the digest that a lone node has."""
    tree = None if way.tree is None else TREES[way.tree]
    job = _Job(
        layout=_layout(way), world_size=way.workers, update=way.update,
        max_grad_norm=way.max_grad_norm, poison_step=way.poison_step, way=way,
    )  # fmt: skip
    state = directory / "state" if way.is_stored else None
    if state is not None and way.optimizer_nodes > 1:
        state.mkdir(exist_ok=True)
    with cluster_for(
        job, directory, state=state, resume=resume, transport=way.transport,
        memory_budget_bytes=28 * way.chunk_kib * KIB if way.is_tight else LARGE,
        has_switch=way.has_switch, tree=tree, aggregate=way.aggregate,
        optimizer_nodes=way.optimizer_nodes,
        switch_limits=None if way.has_slots else SwitchLimits(slot_bytes_max=0),
    ) as cluster:  # fmt: skip
        cluster.run(Worker(job, cancel_step=way.cancel_step, stop_at=stop_at))
        cluster.wait_until_served()
        return cluster.weights_digest() if way.optimizer_nodes == 1 else ""


def digest_at(way: Way, directory: Path) -> str:
    """The digest of the weights of the state in a directory."""
    layout = _layout(way)
    with StripedPages(directory / "state", way.optimizer_nodes, None) as pages:
        pages.lay_out(layout)
        return weights_digest(pages, layout)


def _layout(way: Way) -> Layout:
    layout = make_layout(way.chunk_kib, way.wire_dtype)
    parameters = tuple(
        replace(each, form=way.form.of(each.elems, is_embedding=False))
        for each in layout.parameters
    )
    return replace(layout, parameters=parameters, optimizer_nodes=way.optimizer_nodes)
