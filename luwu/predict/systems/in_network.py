"""A step of LuWu: weights and optimizer state at the node, sums and copies in the network.

    L1  down      pulls * 2 Psi / min(port of a worker, port of the node): each byte leaves the node
                  once, the switch copies it for every worker, or for every host (L8)
    L2  up        gradient bytes * Psi / min(port of a worker, switch, port of the node): the switch
                  sums, so the node takes one gradient
    L3  read      S Psi (1 - cached) / drives         L4  write    the same
                  S = 12: master and moments, by `master_dtype` and `state_dtype` 12 to 4.125
    L5  memory    [4 + 2 S + 2 S (1 - cached) dma + m (gradient + pulls * 2)] Psi / memory rate
    L6  a step    its phases one after the other, each as long as its slowest resource, and the
                  tail; at least what drives read, and what they write
        forward   compute, half of the pulls
        backward  compute, the other half
        update    read, write and memory: of one micro-batch in its backward, as a unit is updated
                  when its gradient is there, and a thread keeps a page until it is written; of
                  several in the first forward of the next step, as all is updated after the commit
        push      overlaps with the next forward, so it limits all of them together: from the end
                  of the first forward on, m pushes, the last of them beside read and memory
        ahead     with `pulls_ahead`, pulls of the next forward begin in backward, as soon as units
                  are updated, so that all compute overlaps with all pulls
    L7  tail      the first unit's gradient is the last to come, and its weights the first to be
                  needed: its push, read, update and pull, which nothing hides
    L8  per host  with `per_host` each of the k devices of a host pulls (and pushes) 1/k of a unit
                  through its part of the host's NICs, and has the rest from the others of its
                  domain, who sum first what they push: min(k port, k/(k - 1) domain) in place of
                  the port of a worker; a step is no shorter than both take on a domain's link
    L9  spilled   max(0, m (gradient + 4) Psi - (m + gradient/4) sums): contributions and sums of
                  several micro-batches, beyond the memory that a node has for sums, are written and
                  read back

It is right where resources are the limit, and not the order of work: `luwu/predict/driven`, which
runs the protocol cores, models windows, threads and pages that must be written before they are read
again.

Up and down are two directions of a link, so they do not compete. Psi is divided by the nodes.
Source: arXiv 2409.00918 (what overlaps with what); derived.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import MASTER_BYTES, MOMENT_BYTES, Host, Network, adam_bytes
from luwu.predict.hardware.values import check_choice
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import WIRE_BYTES, compute_time, operators_of
from luwu.predict.model.placement import domain_count, domain_path

PER_HOST = ("none", "pull", "pull-and-push")
DOMAIN_LINK = "domain link"
SUM_BYTES = 4
SUMS_BYTES_MAX = 2**30
"""Sums that wait in memory for the rest of a step, as `switch_emu.node.plan` has it."""
DMA = 1.0
"""Passes over memory of what a drive reads or writes, besides those of the update: the processor's
cache takes part (DDIO); 2 where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerNodes:
    """Where the state is."""

    host: Host
    network: Network
    """Network of one node; each of several nodes has as much."""
    nodes: int = 1
    cached: float = 0.0
    """Share of the state that stays in memory."""
    aggregate_rate: float = math.inf
    """Bytes a second that a switch can sum."""
    tiers: int = 1
    """Tiers of switches between workers and node."""
    pulls: int = 2
    """Pulls of a unit in a step: 2 if weights are freed between forward and backward."""
    pulls_ahead: bool = False
    """Workers pull units into their hosts' memory while others still compute backward, as soon as
    they are updated, instead of within a window of a few units."""
    per_host: str = "none"
    """What goes to a host once instead of to each of its devices, of PER_HOST."""
    state_dtype: str = "float32"
    """Dtype in which the nodes store moments; a key of MOMENT_BYTES."""
    master_dtype: str = "float32"
    """Dtype in which they store master weights; a key of MASTER_BYTES."""

    @property
    def state_bytes(self) -> float:
        """Bytes of the state of a parameter: its master and two moments (S of L3)."""
        return MASTER_BYTES[self.master_dtype] + 2 * MOMENT_BYTES[self.state_dtype]

    @property
    def once(self) -> tuple[str, ...]:
        """Of pulls and pushes, those that go to a host once (L8)."""
        return ("pull", "push")[: PER_HOST.index(self.per_host)]

    def __post_init__(self) -> None:
        if not 0 <= self.cached <= 1:
            raise ConfigError(f"cached: {self.cached} is not a share; give 0 to 1")
        if self.pulls not in (1, 2):
            raise ConfigError(f"pulls: {self.pulls} of a unit in a step; 1 or 2 fit")
        check_choice("per_host", self.per_host, PER_HOST)
        check_choice("state_dtype", self.state_dtype, MOMENT_BYTES)
        check_choice("master_dtype", self.master_dtype, MASTER_BYTES)


def way_rate(job: TrainingJob, nodes: OptimizerNodes, name: str) -> float:
    """Bytes a second of a unit that is pulled by all workers (L1), or pushed to the node (L2)."""
    return min(_rates(job, nodes, name).values())


def _rates(job: TrainingJob, nodes: OptimizerNodes, name: str) -> dict[str, float]:
    """Bytes a second that each on the way of pulls or pushes has, by whose port it is."""
    worker, devices = job.network.port_rate, host_devices(job)
    if name in nodes.once and devices > 1:
        worker = min(devices * worker, devices / (devices - 1) * domain_path(job.device).rate)
    rates = {"the node": nodes.network.port_rate * nodes.nodes, "each worker": worker}
    return rates | {"the switch": nodes.aggregate_rate} if name == "push" else rates


def port_bytes(job: TrainingJob, nodes: OptimizerNodes) -> dict[str, float]:
    """Through each worker's port, or its part of one, in a step: down, and up."""
    whole = {
        "pull": nodes.pulls * WIRE_BYTES * float(job.model.parameters),
        "push": job.software.gradient_bytes * job.model.parameters,
    }
    shares = {name: host_devices(job) if name in nodes.once else 1 for name in whole}
    return {name: job.micro_batches * whole[name] / shares[name] for name in whole}


def host_devices(job: TrainingJob) -> int:
    """Devices of the job in its emptiest host, which is the slowest to share a unit (L8)."""
    return job.devices % domain_count(job) or domain_count(job)


def _slowest_port(job: TrainingJob, nodes: OptimizerNodes, name: str) -> str:
    """Whose port alone limits pulls or pushes; empty where several do, and of what is neither."""
    if name not in ("pull", "push"):
        return ""
    rates = _rates(job, nodes, name)
    least = [port for port, rate in rates.items() if rate == min(rates.values())]
    return least[0] if len(least) == 1 else ""


def predict_in_network_step(job: TrainingJob, nodes: OptimizerNodes) -> StepTime:
    """The time of a step (L6)."""
    operators = operators_of(job)
    compute = compute_time(job, operators)
    m = job.micro_batches
    parts = {name: m * seconds for name, seconds in compute.items()}
    resources = node_resources(job, nodes, job.model.parameters)
    waits, binds = defaultdict[str, float](float), defaultdict[str, float](float, compute=0.0)
    phases = _phases(job, compute, resources, nodes)
    for phase in phases:
        longest = max(phase, key=lambda name: phase[name])
        binds[longest] += phase[longest]
        waits[longest] = waits[longest] + phase[longest] - phase["compute"]
    push_s = resources["push"] / m
    beside_s = max(0.0, max(resources["disk read"], resources["node memory"]) - push_s)
    first_s = 0.0 if nodes.pulls_ahead else max(phases[0].values())
    pushed_s = first_s + resources["push"] + beside_s
    behind_s = pushed_s - sum(max(phase.values()) for phase in phases)
    if behind_s > 0:
        longest, waits["push"], binds["push"] = "push", behind_s, resources["push"]
    parts |= {f"waiting for {name}": seconds for name, seconds in waits.items() if seconds}
    parts["tail"] = tail(job, nodes, within=longest)
    spilled = spilled_bytes(job, nodes)
    spills = {"disk read": nodes.host.read(spilled), "disk write": nodes.host.write(spilled)}
    for name in (*spills, DOMAIN_LINK):
        busy_s = resources.get(name, 0.0) + spills.get(name, 0.0)
        left = busy_s - sum(parts.values())
        if left > 0:
            parts[f"waiting for {name}"] = parts.get(f"waiting for {name}", 0.0) + left
            binds[name] = busy_s
    bound_by = max(binds, key=lambda name: binds[name])
    return StepTime(
        parts=parts, notes=operators.notes, bound_by=bound_by,
        port=_slowest_port(job, nodes, bound_by),
        resources={"compute": m * sum(compute.values()), **resources},
    )  # fmt: skip


def _phases(
    job: TrainingJob, compute: dict[str, float], resources: dict[str, float], nodes: OptimizerNodes
) -> list[dict[str, float]]:
    """Seconds of each resource in each phase of a step: they follow each other (L6)."""
    m, again = job.micro_batches, compute["recomputation"]
    forward_s = (sum(compute.values()) - again) / 3
    backward_s = 2 * forward_s + again
    pull_s = resources["pull"] / m
    if nodes.pulls_ahead:
        whole = {"compute": m * (forward_s + backward_s), "pull": resources["pull"]}
        return [whole | {name: resources[name] for name in ("disk read", "node memory")}]
    forward = {"compute": forward_s, "pull": pull_s / nodes.pulls}
    backward = {"compute": backward_s, "pull": pull_s * (1 - 1 / nodes.pulls)}
    update = {name: resources[name] for name in ("disk read", "disk write", "node memory")}
    if m == 1:
        return [forward, backward | update]
    return [forward | update, backward] + [forward, backward] * (m - 1)


def spilled_bytes(job: TrainingJob, nodes: OptimizerNodes) -> float:
    """Of a step, to a node's drives and back (L9)."""
    m, up = job.micro_batches, job.software.gradient_bytes
    if m == 1 or not nodes.host.disks:
        return 0.0
    whole = m * (up + SUM_BYTES) * job.model.parameters
    return max(0.0, whole - (m + up / SUM_BYTES) * SUMS_BYTES_MAX) / nodes.nodes


def node_resources(job: TrainingJob, nodes: OptimizerNodes, parameters: float) -> dict[str, float]:
    """Seconds that each resource is busy with so many parameters of a step (L1 to L5)."""
    own = parameters / nodes.nodes
    down = nodes.pulls * WIRE_BYTES * parameters
    up = job.software.gradient_bytes * parameters
    host, away = nodes.host, (1 - nodes.cached) * nodes.state_bytes * own
    passed = adam_bytes(nodes.state_bytes) * own + 2 * DMA * away
    passed += job.micro_batches * (up + down) / nodes.nodes
    busy = {
        "pull": job.micro_batches * down / way_rate(job, nodes, "pull"),
        "push": job.micro_batches * up / way_rate(job, nodes, "push"),
        "disk read": host.read(away),
        "disk write": host.write(away),
        "node memory": passed / host.memory_rate,
    }
    if nodes.once:
        passed_on = down + (up if "push" in nodes.once else 0.0)
        devices, rate = host_devices(job), domain_path(job.device).rate
        busy[DOMAIN_LINK] = job.micro_batches * passed_on * (devices - 1) / devices / rate
    return busy


def tail(job: TrainingJob, nodes: OptimizerNodes, *, within: str) -> float:
    """Time of the first unit at the end of a step (L7), without the resource that backward already
    waits for; its write overlaps with the next step."""
    resources = node_resources(job, nodes, job.model.layer_parameters)
    seconds = {name: resources[name] for name in ("disk read", "node memory")}
    seconds["push"] = resources["push"] / job.micro_batches
    seconds.pop(within, None)
    pull = resources["pull"] / (job.micro_batches * nodes.pulls)
    hops = 2 * (job.network.latency_s + nodes.tiers * job.network.hop_s)
    return sum(seconds.values()) + pull + hops
