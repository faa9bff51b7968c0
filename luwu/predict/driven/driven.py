"""Steps of LuWu that its own cores decide: what a run would do, in virtual time.

    driven_node.py      the project's `NodeCore`: what is read, updated, published, written,
                        prepared and decided, and when
    driven_worker.py    the project's `NicCore`: what is asked for, what may be used; one worker
    links.py            both directions between them, with the switch that sums and copies

A decision that is changed in a core changes a run and the prediction alike; nothing of what the
cores know is said again here. Engines take their time from the question, as the closed form (L1 to
L5) does: the same rates, the same passes over memory. Where `at_step` folds a gradient it is read
and the sum is written once more. The core of the switch is not driven: it sums and hands on at the
rate of the links, and the latency counts its hops.

Steps of several micro-batches are updated `at_step`, as the project does it: `streaming` has one
backward a step. A node holds and has under way what its memory plan says (`switch_emu.node.plan`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import simpy

from luwu.base.errors import ConfigError
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.base.suggestion import suggestion
from luwu.layout import SUM_BYTES, Layout, Parameter
from luwu.layout import Unit as LayoutUnit
from luwu.predict.driven.driven_node import DrivenNode, NodeCosts
from luwu.predict.driven.driven_worker import DrivenWorker, Script
from luwu.predict.driven.links import Link
from luwu.predict.events.engines import Record
from luwu.predict.events.in_network import AHEAD, Played, Unit, units_of
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems.in_network import OptimizerNodes
from luwu.wire.description import Description
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.plan import plan_node

STEPS: Final = 3
"""Played; the last one is measured. The second is like all after it."""
CHUNK_BYTES_MIN: Final = 16 * 1024 * 1024
"""What the project takes where memory and links allow."""
CHUNKS_MAX: Final = 512
"""Played in a step, unless more are asked for: playing takes time by their number."""
UPDATES: Final = ("streaming", "at_step")
GRADIENT_DTYPES: Final = {2: "bfloat16", 4: "float32"}


@dataclass(frozen=True, slots=True)
class Driven(Played):
    """Steps that were played, and what each process would have recorded of them."""

    told: dict[str, Record] = field(default_factory=dict)
    """By process: `worker-0`, `network`, `node`."""
    description: Description | None = None
    """What was trained, as the cores were told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """How steps are played. Raises ConfigError."""

    steps: int = STEPS
    """The last is measured."""
    ahead: int = AHEAD
    """Units that a worker asks for before compute is at them."""
    update: str | None = None
    """Order of work; None: `streaming`, or `at_step` where a step has several micro-batches."""
    chunk_bytes: int | None = None
    """Of float32, a multiple of 16 KiB. None: 16 MiB, or as many as cut the model into few."""
    limits: NodeLimits | None = None
    """None: as the node plans its memory."""
    threads: int | None = None
    """Of the node, that have a page each until it is written; None: as it plans its memory."""
    weights_away: bool = False
    """The node reads masters from drives to send weights; see `NodeCosts`."""
    prepare_s: float = 0.0
    """A flush of a step."""

    def __post_init__(self) -> None:
        if self.steps < 2 or self.ahead < 1:
            raise ConfigError(
                f"steps is at least 2 and ahead at least 1, got {self.steps} and {self.ahead}"
            )
        if self.update not in (None, *UPDATES):
            raise ConfigError(
                f"update: {self.update!r} is none of {', '.join(UPDATES)}"
                f"{suggestion(self.update, UPDATES)}"
            )
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads: {self.threads}, but somebody must update pages")
        if not self.prepare_s >= 0:
            raise ConfigError(f"prepare_s: {self.prepare_s!r} is no time; give 0 or more")

    def order(self, job: TrainingJob) -> str:
        """The order of work for a job. Raises ConfigError."""
        if self.update == "streaming" and job.micro_batches > 1:
            raise ConfigError(
                f"update: streaming has one backward a step, and this job has {job.micro_batches} "
                "micro-batches; take at_step, or a batch of one micro-batch a worker"
            )
        return self.update or ("streaming" if job.micro_batches == 1 else "at_step")


def play_driven_steps(
    job: TrainingJob, nodes: OptimizerNodes, playing: Playing | None = None
) -> Driven:
    """Play steps as the project's cores decide them. Raises ConfigError."""
    how = playing or Playing()
    units = units_of(job, nodes)
    chunk_bytes = how.chunk_bytes or _chunk_bytes(job)
    scale = -(-chunk_bytes // PAYLOAD_BYTES_MAX)
    description = Description(
        layout=_layout(units, chunk_bytes // scale, scale), optimizer="adamw",
        update=how.order(job), state_fields=("m", "v"),
    )  # fmt: skip
    plan = plan_node(
        budget_bytes=int(nodes.host.memory_bytes) * nodes.nodes, chunk_bytes=chunk_bytes,
        world_size=job.devices, has_switch=True,
    )  # fmt: skip
    limits = how.limits or NodeLimits(
        sum_bytes_max=plan.sums_bytes, updates_max=plan.updates_max, reads_max=plan.reads_count,
        push_window_bytes=plan.window_bytes,
    )  # fmt: skip
    limits = replace(
        limits, sum_bytes_max=limits.sum_bytes_max // scale,
        push_window_bytes=limits.push_window_bytes // scale,
    )  # fmt: skip
    env, record = simpy.Environment(), Record()
    told = {name: Record() for name in ("worker-0", "network", "node")}
    up, down = _links(env, told["network"], job, nodes, scale)
    node = DrivenNode(
        env, record, told["node"], description=description, limits=limits,
        threads=how.threads or plan.updates_count, send=down.send, scale=scale,
        costs=NodeCosts.of(nodes, weights_away=how.weights_away, prepare_s=how.prepare_s),
    )  # fmt: skip
    worker = DrivenWorker(
        env, record, told["worker-0"], description=description, send=up.send,
        script=Script(
            units=units, steps=how.steps, micro_batches=job.micro_batches, pulls=nodes.pulls,
            ahead=how.ahead, gradient_dtype=_gradient_dtype(job),
        ),
    )  # fmt: skip
    up.arrived, down.arrived = node.received, worker.received
    env.run()
    if not worker.is_finished:
        raise AssertionError(f"the cores stopped: the node waits for {node.core.waits_for()}")
    record.spans.extend(told["network"].spans)
    return Driven(record, tuple(worker.ends_s), told, description)


def _chunk_bytes(job: TrainingJob) -> int:
    """16 MiB, doubled until few are played in a step; but two of a layer, so that they overlap."""
    chunk_bytes = CHUNK_BYTES_MIN
    most = max(CHUNKS_MAX // job.micro_batches, 2 * job.model.layers)
    while job.model.parameters * SUM_BYTES / chunk_bytes > most:
        chunk_bytes *= 2
    return chunk_bytes


def _layout(units: list[Unit], chunk_bytes: int, scale: int) -> Layout:
    """A parameter for each unit: all 16-bit on the wire, all trained.

    An element stands for `scale` parameters: frames have a largest size, and models have not.
    """
    parameters = tuple(
        Parameter(name=unit.name, shape=(round(unit.parameters / scale),), wire_dtype="bfloat16")
        for unit in units
    )
    members = tuple(
        LayoutUnit(name=unit.name, parameters=(index,)) for index, unit in enumerate(units)
    )
    return Layout(parameters=parameters, units=members, chunk_bytes=chunk_bytes)


def _links(
    env: simpy.Environment, record: Record, job: TrainingJob, nodes: OptimizerNodes,
    scale: int,
) -> tuple[Link, Link]:  # fmt: skip
    """Up and down; the narrowest place on the way sets the rate (L1, L2)."""
    down = min(job.network.port_rate, nodes.network.port_rate * nodes.nodes)
    up = min(down, nodes.aggregate_rate)
    latency_s = job.network.latency_s + nodes.tiers * job.network.hop_s
    return (
        Link(env, record, "up", rate=up, latency_s=latency_s, scale=scale),
        Link(env, record, "down", rate=down, latency_s=latency_s, scale=scale),
    )


def _gradient_dtype(job: TrainingJob) -> str:
    nbytes = job.software.gradient_bytes
    for known, dtype in GRADIENT_DTYPES.items():
        if nbytes == known:
            return dtype
    raise ConfigError(
        f"software: {job.software.name} has gradients of {nbytes} bytes a parameter, and on LuWu's "
        "wire they have 2 or 4"
    )
