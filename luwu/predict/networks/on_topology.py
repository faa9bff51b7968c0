"""Training on a network that is known link by link: what exchanges have of it, and put on it.

    S11  ranks         as placement.py has them (G1, G2): what is in one domain is not here; of k
                       ranks in each, a ring through their ports is k rings, domain after domain
    S12  a port        an exchange has min(1, what the topology leaves) of it (S5), and the
                       latency of the switches on its longest way
    S15  LuWu          up m gradient Psi, down m pulls 2 Psi: on each link once
    S16  busiest link  what a port sends / its share (S12): where flows meet

Bytes are of one step and of one direction. A topology never makes a port faster than it is; the
parts of the step show what it slows down.
Sources: S5, S6; `traffic.py` (bytes of training); derived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from luwu.predict.hardware.hardware import Network
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.placement import group_of, placed
from luwu.predict.model.traffic import ports, three_d_busy, three_d_bytes, whole_ring_bytes
from luwu.predict.networks.choice import Built
from luwu.predict.networks.topologies import Connection, RankGroup
from luwu.predict.systems.in_network import OptimizerNodes, port_bytes
from luwu.predict.systems.training import exchange_time, predict_step, waiting_for


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange of one kind, in a step."""

    group: RankGroup
    collective: str
    port_bytes: float
    """That each rank's port sends, or receives of a pull."""


def training_exchanges(
    system: str, job: TrainingJob, nodes: OptimizerNodes | None
) -> dict[str, Exchange]:
    """Those that go over the network (S11, S13 to S15)."""
    everyone = RankGroup(job.devices)
    if nodes is not None:
        sent = port_bytes(job, nodes)
        return {name: Exchange(everyone, name, sent[name]) for name in ("push", "pull")}
    if system == "3d":
        return _three_d(job)
    if system == "atp":
        gradients = job.software.gradient_bytes * job.model.parameters
        summed = Exchange(everyone, "in_network_all_reduce", gradients)
        return {"sum": summed} if job.devices > 1 else {}
    name, collective = ("gradients", "all_reduce") if system == "ddp" else ("states", "all_gather")
    return _ring(name, job, job.devices, 1, whole_ring_bytes(job, system), collective)


def _ring(
    name: str, job: TrainingJob, size: int, stride: int, port_bytes: float,
    collective: str = "all_gather",
) -> dict[str, Exchange]:  # fmt: skip
    """Ring of every stride-th device, if they are in several domains: through all ports that its
    ranks have in each, or through one of them (S11)."""
    group = placed(job, size, stride)
    if group.domains == 1:
        return {}
    each = ports(job, group)
    return {name: Exchange(RankGroup(size // each, stride * each), collective, port_bytes)}


def _three_d(job: TrainingJob) -> dict[str, Exchange]:
    """Those of `traffic.py`, each with its ranks."""
    found: dict[str, Exchange] = {}
    tensor, stages = group_of(job, "tensor"), group_of(job, "pipeline")
    inner = job.tensor * job.context
    groups = {
        "tensor": (RankGroup(tensor.domains, tensor.inside), "all_reduce"),
        "context": (RankGroup(job.context, job.tensor), "send"),
        "expert": (RankGroup(job.expert, job.expert_width), "all_to_all"),
        "pipeline": (RankGroup(stages.domains, inner * job.data * stages.inside), "send"),
    }
    for name, nbytes in three_d_bytes(job).items():
        if name == "data":
            found |= _ring("data", job, job.data * job.context, job.tensor, nbytes)
        else:
            found[name] = Exchange(*groups[name], nbytes)
    return found


def connections(built: Built, exchanges: dict[str, Exchange]) -> dict[str, Connection]:
    """The connection of each exchange in a network. Raises ConfigError."""
    return {name: built.connection(one.group, one.collective) for name, one in exchanges.items()}


@lru_cache(maxsize=1024)  # a plan asks for the same few all the time
def slowed(network: Network, connection: Connection) -> Network:
    """A network as one exchange has it (S12)."""
    rate = min(connection.rate, network.port_rate) / network.efficiency
    return replace(network, rate=rate, latency_s=connection.latency_s)


def slowest(network: Network, connections: Iterable[Connection]) -> Network:
    """As an exchange has it that is none of those known: the least of all."""
    each = [slowed(network, connection) for connection in connections]
    if not each:
        return network
    latency_s = max(one.latency_s for one in each)
    return replace(min(each, key=lambda one: one.rate), latency_s=latency_s)


def three_d_step(job: TrainingJob, found: dict[str, Connection]) -> StepTime:
    """A 3-D step in which every exchange has what the network leaves to its own group."""
    base = predict_step(replace(job, network=slowest(job.network, found.values())))
    parts = {name: s for name, s in base.parts.items() if not name.startswith("waiting for")}
    straggling = parts.pop("straggling")
    busy, sent = three_d_busy(job), three_d_bytes(job)
    for name, connection in found.items():
        one = replace(job, network=slowed(job.network, connection))
        parts[f"{name} exchange"] = exchange_time(one, f"{name} exchange")
        alone_s = sent[name] / min(connection.rate, job.network.port_rate)
        busy["network port"] = max(busy["network port"], alone_s)
    waits, bound_by = waiting_for(parts, busy)
    parts |= waits
    parts["straggling"] = straggling
    return replace(base, parts=parts, bound_by=bound_by)


def document(built: Built, kind: str, exchanges: dict[str, Exchange]) -> dict[str, Any]:
    """A network and what each exchange has of it and puts on it (S16)."""
    parts = built.inventory
    found: dict[str, Any] = {
        "kind": kind, "endpoints": built.endpoints, "radix": built.radix,
        "switches": parts.switches, "tiers": len(built.tiers), "links": parts.links,
        "exchanges": {},
    }  # fmt: skip
    for name, connection in connections(built, exchanges).items():
        each = exchanges[name]
        share = min(1.0, connection.rate / built.network.port_rate)
        found["exchanges"][name] = {
            "collective": each.collective, "ranks": each.group.size, "stride": each.group.stride,
            "port_share": share, "rate": share * built.network.port_rate,
            "hops": connection.hops, "latency_s": connection.latency_s,
            "bytes_of_a_port": each.port_bytes,
            "bytes_of_the_busiest_link": each.port_bytes / share,
        }  # fmt: skip
    return found


def document_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"{found['kind']}: {found['endpoints']} endpoints, {found['switches']} switches of "
        f"{found['radix']} ports in {found['tiers']} tiers, {found['links']} links"
    ]
    lines += [
        f"  {name:<10} {each['ranks']} ranks, {each['port_share']:.0%} of a port, {each['hops']} "
        f"switches, {each['latency_s'] * 1e6:.1f} us; {each['bytes_of_a_port'] / 1e9:,.3g} GB of "
        f"a port, {each['bytes_of_the_busiest_link'] / 1e9:,.3g} GB of the busiest link"
        for name, each in found["exchanges"].items()
    ]
    return lines
