"""The placement of a job's ranks, and so the carrier of their exchanges: a domain or the network.

    G1  numbering     tensor ranks are next to each other, then context, data and pipeline: a group
                      is every stride-th device, the stride being the product of the degrees before
    G2  in a domain   k of n ranks: the largest divisor of n that is at most domain / stride, or 1
    G3  a ring        of n ranks in one domain has the domain's rate; through several, the sum of
                      the k ports that its ranks have in each, but no more than the domain's rate;
                      a flat one, the fitted share of one port
    G4  a step        of a ring whose ranks wait for each other takes as long as its slowest hop
    G5  a shared port of d devices (N16) carries max(1, s d/k) flows, where s of the k ranks that a
                      group has in a domain send out of it: all of them by default, one
                      of a flat ring and of context parallel ranks, two of a pipeline

A domain is a set of devices with its own fast network: `domain_count` of the catalogue, 8 in a
DGX and 72 in an NVL72. Sources: Megatron-LM's order tp-cp-ep-dp-pp (G1); NCCL, which makes a ring
for each port of a host (G3); derived (G2, G4).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from luwu.predict.hardware.hardware import Device, Network
from luwu.predict.hardware.software import fitted
from luwu.predict.model.collectives import Path
from luwu.predict.model.job import TrainingJob

DOMAIN_HOP_S = 3.4e-6
"""Latency of a message in a domain. Source: NCCL's tuning table, a hop of a ring over NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that exchange with each other."""

    size: int
    inside: int
    """Number of them that share a domain (G2)."""

    @property
    def domains(self) -> int:
        return self.size // self.inside


def domain_count(job: TrainingJob) -> int:
    """Devices of a domain; those of a host, where the software's testbed had fewer."""
    return job.software.host_devices or int(job.device.domain_count)


def placed(job: TrainingJob, size: int, stride: int) -> Group:
    """A group of every stride-th device (G1, G2)."""
    return _group(size, max(1, domain_count(job) // stride))


@functools.cache
def _group(size: int, most: int) -> Group:
    """With as many ranks in a domain as divide it, of `most` (a plan asks often)."""
    inside = max(each for each in range(1, min(size, most) + 1) if size % each == 0)
    return Group(size=size, inside=inside)


def group_of(job: TrainingJob, ranks: str) -> Group:
    """Ranks that share each layer (`tensor`), each sequence (`context`), have the same weights
    (`gradient`), or the same experts (`copies`, J6), other experts (`expert`), or the stages of one
    replica (`pipeline`); or all."""
    size, stride = {
        "tensor": (job.tensor, 1),
        "context": (job.context, job.tensor),
        "gradient": (job.data * job.context, job.tensor),
        "pipeline": (job.pipeline, job.tensor * job.context * job.data),
        "expert": (job.expert, job.expert_width),
        "copies": (job.expert_copies, job.expert * job.expert_width),
        "all": (job.devices, 1),
    }[ranks]
    return placed(job, size, stride)


def domain_path(device: Device) -> Path:
    """A device's path through its domain; without a network of its own, its path to the host."""
    rate = device.domain_rate or device.host_rate
    if device.all_reduce is not None:
        rate = min(rate, device.all_reduce.rates[-1])
    return Path(latency_s=DOMAIN_HOP_S, rate=rate)


def network_path(network: Network) -> Path:
    """A device's path through the network: its port."""
    return Path(latency_s=network.latency_s, rate=network.port_rate)


def spread(network: Network, group: Group, senders: int = 1) -> float:
    """Share of the devices at a port that send at once, if so many ranks leave a domain (G5)."""
    return max(1 / network.devices_count, min(1.0, senders / group.inside))


def leaving_path(job: TrainingJob, group: Group, senders: int = 1) -> Path:
    """The path of one of those out of its domain (G5)."""
    rate = job.network.flow_rate(spread(job.network, group, senders))
    return Path(latency_s=job.network.latency_s, rate=rate)


def ring_path(job: TrainingJob, group: Group) -> Path:
    """A rank's path in a ring through its group (G3)."""
    inside, latency_s = domain_path(job.device), job.network.latency_s
    if group.domains == 1:
        return inside
    if job.software.ring == "hierarchical":
        rate = group.inside * job.network.port_rate
    else:
        rate = fitted("flat_ring") * leaving_path(job, group).rate
    return Path(latency_s=latency_s, rate=min(inside.rate, rate))


def step_path(job: TrainingJob, group: Group) -> Path:
    """A rank's path where each sends to the next and all wait (G4)."""
    inside, port = domain_path(job.device), leaving_path(job, group)
    if group.domains == 1 or group.inside == 1:
        return inside if group.domains == 1 else port
    return Path(
        latency_s=max(inside.latency_s, port.latency_s), rate=min(inside.rate, port.rate)
    )  # fmt: skip
