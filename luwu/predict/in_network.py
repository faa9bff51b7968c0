"""A step of LuWu: weights and optimizer state at the node, sums and copies in the network.

    L1  down      pulls * 2 Psi / min(port of a worker, port of the node): each byte leaves the node
                  once, the switch copies it
    L2  up        gradient bytes * Psi / min(port of a worker, switch, port of the node): the switch
                  sums, so the node takes one gradient
    L3  read      12 Psi (1 - cached) / drives        L4  write    the same
    L5  memory    [28 + 24 (1 - cached) dma + gradient + pulls * 2] Psi / memory rate
    L6  a step    the longest of compute and L1 to L5, and the tail
    L7  tail      the first unit's gradient is the last to come, and its weights the first to be
                  needed: its push, read, update and pull, which nothing hides

Up and down are two directions of a link, so they do not compete. Psi is divided by the nodes.
Source: arXiv 2409.00918 (what is hidden behind what); derived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.curves import Notes
from luwu.predict.hardware import Network
from luwu.predict.hosts import ADAM_BYTES, STATE_BYTES, Host
from luwu.predict.job import StepTime, TrainingJob
from luwu.predict.layers import compute_time, operators_of
from luwu.predict.operators import WIRE_BYTES
from luwu.predict.software import fitted

DMA = 2.0
"""Passes over memory of what a drive reads or writes: by the drive, and by who uses it. 1 where the
processor's cache takes part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerNodes:
    """Where the state is."""

    host: Host
    network: Network
    """Of one node; of several, each has as much."""
    nodes: int = 1
    cached: float = 0.0
    """Of the state, the share that stays in memory."""
    aggregate_rate: float = math.inf
    """Bytes a second that a switch can sum."""
    tiers: int = 1
    """Of switches between workers and node."""
    pulls: int = 2
    """Of a unit in a step: 2 where weights are freed between forward and backward."""

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= 1:
            raise ConfigError(f"cached: {self.cached} is no share; give 0 to 1")
        if self.nodes < 1 or self.tiers < 0 or self.pulls not in (1, 2):
            raise ConfigError("nodes is at least 1, tiers at least 0, and pulls are 1 or 2")


def predict_in_network_step(job: TrainingJob, nodes: OptimizerNodes) -> StepTime:
    """The time of a step (L6)."""
    notes = Notes()
    operators = operators_of(job, notes)
    compute = compute_time(job, operators)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    computing = sum(parts.values())
    resources = {"compute": computing, **node_resources(job, nodes, job.model.parameters)}
    longest = max(resources, key=lambda name: resources[name])
    if longest != "compute":
        parts[f"waiting for {longest}"] = resources[longest] - computing
    parts["tail"] = tail(job, nodes)
    parts["straggling"] = sum(parts.values()) * fitted("straggling") * math.log(job.devices)
    return StepTime(parts=parts, micro_batches=m, notes=notes, resources=resources)


def node_resources(job: TrainingJob, nodes: OptimizerNodes, parameters: float) -> dict[str, float]:
    """Seconds that each resource is busy with so many parameters, once pulled and pushed for each
    micro-batch (L1 to L5)."""
    own = parameters / nodes.nodes
    worker, node = _rate(job.network), _rate(nodes.network) * nodes.nodes
    down = nodes.pulls * WIRE_BYTES * parameters
    up = job.software.gradient_bytes * parameters
    host, away = nodes.host, (1 - nodes.cached) * STATE_BYTES * own
    passed = ADAM_BYTES * own + 2 * DMA * away + (up + down) / nodes.nodes
    return {
        "pull": job.micro_batches * down / min(worker, node),
        "push": job.micro_batches * up / min(worker, node, nodes.aggregate_rate),
        "disk read": host.read(away),
        "disk write": host.write(away),
        "node memory": passed / host.memory_rate,
    }


def tail(job: TrainingJob, nodes: OptimizerNodes) -> float:
    """What the first unit takes at the end of a step (L7); its write is behind the next step."""
    unit = job.model.layer_parameters
    resources = node_resources(job, nodes, unit)
    pull = resources["pull"] / (job.micro_batches * nodes.pulls)
    push = resources["push"] / job.micro_batches
    hops = 2 * (job.network.latency_s + nodes.tiers * job.network.hop_s)
    return push + resources["disk read"] + resources["node memory"] + pull + hops


def _rate(network: Network) -> float:
    return network.rate * network.efficiency
