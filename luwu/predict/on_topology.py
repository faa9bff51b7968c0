"""A job on a network that is known link by link: what its exchanges have of it, and put on it.

    G1  ranks         tensor ranks are neighbours, then context, data and pipeline ranks: those of a
                      data group are t c apart, stages t c d; rings through all ports of a host are
                      one of each rail, host after host
    G2  a port        an exchange has min(1, what the topology leaves) of it (S5, D6), and the
                      latency of the switches on its longest way
    G3  sharded       m (gathers 2 + gradient) Psi (N - 1)/N over the rings; DDP 2 gradient Psi
                      (N - 1)/N once a step
    G4  3-D           data: (gradient + back) Psi/(t p) (d - 1)/d; a stage: 2 m v of 2 n h bytes, to
                      the next and to the one before; tensor ranks beyond a domain: 2 (t - 1)/t of
                      each all-reduce
    G5  LuWu          up m gradient Psi, down m pulls 2 Psi: on each link once, whatever is below
    G6  busiest link  what a port sends / its share (G2): where flows meet

Bytes are of one step, or of one decode round, and of one direction. A topology never makes a port
faster than it is; what it slows down is told by the step's parts.
Sources: S5 to S8, D5, D6; Z1; Narayanan et al. SC'21 (G1, G4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from luwu.predict.hardware import Network
from luwu.predict.in_network import OptimizerNodes
from luwu.predict.inference_job import InferenceJob
from luwu.predict.inference_sockets import SocketJob
from luwu.predict.job import StepTime, TrainingJob
from luwu.predict.operators import WIRE_BYTES
from luwu.predict.question_topology import Built, TopologyChoice
from luwu.predict.rank_groups import Connection, RankGroup, port_rate
from luwu.predict.topologies import AggregationTree
from luwu.predict.zero import GATHERS

AnyJob = TrainingJob | InferenceJob | SocketJob
_PARTS = {"tensor": "tensor exchange", "pipeline": "pipeline exchange", "data": "data exchange"}
"""Of a 3-D step, the part that each group's exchange is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Of one kind, in a step or in a decode round."""

    group: RankGroup
    collective: str
    port_bytes: float
    """That each rank's port sends, or receives of a pull."""


# ---------------------------------------------------------------------- what is exchanged


def training_exchanges(
    system: str, job: TrainingJob, nodes: OptimizerNodes | None
) -> dict[str, Exchange]:
    """Those that go over the network (G1, G3 to G5)."""
    everyone = RankGroup(size=job.devices)
    gradients = job.software.gradient_bytes * job.model.parameters
    if nodes is not None:
        m = job.micro_batches
        down = m * nodes.pulls * WIRE_BYTES * float(job.model.parameters)
        return {
            "push": Exchange(group=everyone, collective="push", port_bytes=m * gradients),
            "pull": Exchange(group=everyone, collective="pull", port_bytes=down),
        }
    if system == "atp":
        return {
            "sum": Exchange(
                group=everyone, collective="in_network_all_reduce", port_bytes=gradients
            )
        }
    return _three_d(job) if system == "3d" else _rings(system, job, gradients)


def _rings(system: str, job: TrainingJob, gradients: float) -> dict[str, Exchange]:
    """Through all devices, in parallel through the ports of a host where software does so."""
    hosts_of, n = job.software.host_devices, job.devices
    if n == 1 or (n <= hosts_of and job.device.domain_rate is not None):
        return {}
    rings = hosts_of if job.software.ring == "hierarchical" else 1
    group = RankGroup(size=-(-n // rings), stride=rings)
    share = (n - 1) / n / rings
    if system == "ddp":
        nbytes = 2 * gradients * share
        return {"gradients": Exchange(group=group, collective="all_reduce", port_bytes=nbytes)}
    both = gradients + GATHERS * WIRE_BYTES * job.model.parameters
    nbytes = job.micro_batches * both * share
    return {"states": Exchange(group=group, collective="all_gather", port_bytes=nbytes)}


def _three_d(job: TrainingJob) -> dict[str, Exchange]:
    found = {}
    tokens = job.micro_batch * job.sequence / job.context
    layer = WIRE_BYTES * tokens * job.model.hidden
    if job.tensor > job.device.domain_count:
        count = {"full": 6.0, "half": 5.0}.get(job.recompute, 4.0)
        count += 0.5 if job.sequence_parallel else 0.0
        times = job.micro_batches * count * job.model.layers / job.pipeline
        found["tensor"] = Exchange(
            group=RankGroup(size=job.tensor), collective="all_reduce",
            port_bytes=times * 2 * (job.tensor - 1) / job.tensor * layer,
        )  # fmt: skip
    inner = job.tensor * job.context
    if job.data > 1:
        own = job.model.parameters / (job.tensor * job.pipeline)
        back = WIRE_BYTES if job.software.shards_optimizer else job.software.gradient_bytes
        found["data"] = Exchange(
            group=RankGroup(size=job.data, stride=inner), collective="all_gather",
            port_bytes=own * (job.software.gradient_bytes + back) * (job.data - 1) / job.data,
        )  # fmt: skip
    if job.pipeline > 1:
        shared = job.tensor if job.sequence_parallel else 1
        found["pipeline"] = Exchange(
            group=RankGroup(size=job.pipeline, stride=inner * job.data), collective="send",
            port_bytes=2 * job.micro_batches * job.virtual * layer / shared,
        )  # fmt: skip
    return found


def inference_exchanges(job: InferenceJob) -> dict[str, Exchange]:
    """Those of a decode round that leave a domain."""
    rounds = job.input_tokens / job.output_tokens if job.batching == "continuous" else 0.0
    layer = WIRE_BYTES * job.batch * (1 + rounds) * job.model.hidden
    found = {}
    if job.tensor > job.device.domain_count:
        found["tensor"] = Exchange(
            group=RankGroup(size=job.tensor), collective="all_reduce",
            port_bytes=2 * job.stage_layers * 2 * (job.tensor - 1) / job.tensor * layer,
        )  # fmt: skip
    if job.pipeline > 1 and job.devices > job.device.domain_count:
        found["pipeline"] = Exchange(
            group=RankGroup(size=job.pipeline, stride=job.tensor), collective="send",
            port_bytes=layer,
        )  # fmt: skip
    return found


def socket_exchanges(job: SocketJob) -> dict[str, Exchange]:
    """Those of a decode round between hosts, by what a host sends."""
    if job.hosts == 1:
        return {}
    syncs = job.model.layers * (1 if job.parallel_blocks else 2)
    nbytes = WIRE_BYTES * job.batch * job.model.hidden
    return {
        "layers": Exchange(
            group=RankGroup(size=job.hosts), collective="all_reduce",
            port_bytes=syncs * 2 * (job.hosts - 1) / job.hosts * nbytes,
        )
    }  # fmt: skip


# ---------------------------------------------------------------------- what they have of it


def slowed(network: Network, connection: Connection) -> Network:
    """A network as one exchange has it (G2)."""
    share = min(1.0, connection.rate / port_rate(network))
    return replace(network, rate=share * network.rate, latency_s=connection.latency_s)


def slowest(network: Network, connections: list[Connection]) -> Network:
    """As an exchange has it that is none of those known: the least of all."""
    if not connections:
        return network
    each = [slowed(network, connection) for connection in connections]
    return replace(
        network, rate=min(one.rate for one in each), latency_s=max(one.latency_s for one in each)
    )


def connections(built: Built, exchanges: dict[str, Exchange]) -> dict[str, Connection]:
    """Of each exchange. Raises ConfigError where the network cannot do it."""
    return {name: built.connection(each.group, each.collective) for name, each in exchanges.items()}


def build_for_training(
    choice: TopologyChoice, job: TrainingJob, nodes: OptimizerNodes | None
) -> Built:
    """With a place for every device, and for the nodes. Raises ConfigError."""
    count = 0 if nodes is None else nodes.nodes
    return choice.build(job.network, job.device, job.devices, count)


def on_topology(
    choice: TopologyChoice, system: str, job: TrainingJob, nodes: OptimizerNodes | None
) -> tuple[TrainingJob, OptimizerNodes | None, dict[str, Connection]]:
    """The job and its nodes as the network leaves their ports. Raises ConfigError."""
    built = build_for_training(choice, job, nodes)
    found = connections(built, training_exchanges(system, job, nodes))
    network = slowest(job.network, list(found.values()))
    if nodes is None:
        return replace(job, network=network), None, found
    tiers = built.tier_count if isinstance(built, AggregationTree) else found["pull"].hops
    network = replace(network, latency_s=job.network.latency_s)  # the model counts its tiers
    return replace(job, network=network), replace(nodes, tiers=tiers), found


def three_d_step(
    job: TrainingJob, found: dict[str, Connection], predict: Callable[[TrainingJob], StepTime]
) -> StepTime:
    """A 3-D step in which every exchange has what the network leaves to its own group."""
    base = predict(replace(job, network=slowest(job.network, list(found.values()))))
    parts = dict(base.parts)
    straggling = parts.pop("straggling")
    share = straggling / sum(parts.values())
    for name, connection in found.items():
        one = predict(replace(job, network=slowed(job.network, connection)))
        parts[_PARTS[name]] = one.parts[_PARTS[name]]
    parts["straggling"] = share * sum(parts.values())
    return replace(base, parts=parts)


# ---------------------------------------------------------------------- what is said of it


def document(built: Built, kind: str, exchanges: dict[str, Exchange]) -> dict[str, Any]:
    """A network and what each exchange has of it and puts on it (G6)."""
    found: dict[str, Any] = {
        "kind": kind,
        "endpoints": built.endpoints,
        "radix": built.radix,
        "switches": built.inventory.switches,
        "links": built.inventory.links,
        "transceivers": built.inventory.transceivers,
        "exchanges": {},
    }
    if hasattr(built, "tier_count"):
        found["tiers"] = built.tier_count
    for name, each in exchanges.items():
        connection = built.connection(each.group, each.collective)
        share = min(1.0, connection.rate / port_rate(built.network))
        found["exchanges"][name] = {
            "collective": each.collective, "ranks": each.group.size, "stride": each.group.stride,
            "port_share": share, "rate": share * port_rate(built.network),
            "hops": connection.hops, "latency_s": connection.latency_s,
            "bisection_rate": connection.bisection_rate, "bytes_of_a_port": each.port_bytes,
            "bytes_of_the_busiest_link": each.port_bytes / share,
        }  # fmt: skip
        if isinstance(built, AggregationTree):
            found["exchanges"][name]["bytes_of_a_link_by_tier"] = built.uplink_bytes(
                each.port_bytes
            )
    return found


def document_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    tiers = f" in {found['tiers']} tiers" if "tiers" in found else ""
    lines = [
        f"{found['kind']}: {found['endpoints']} endpoints, {found['switches']} switches of "
        f"{found['radix']} ports{tiers}, {found['links']} links, {found['transceivers']} "
        "transceivers"
    ]
    lines += [
        f"  {name:<10} {each['ranks']} ranks, {each['port_share']:.0%} of a port, {each['hops']} "
        f"switches, {each['latency_s'] * 1e6:.1f} us; {each['bytes_of_a_port'] / 1e9:,.3g} GB of "
        f"a port, {each['bytes_of_the_busiest_link'] / 1e9:,.3g} GB of the busiest link"
        for name, each in found["exchanges"].items()
    ]
    return lines
