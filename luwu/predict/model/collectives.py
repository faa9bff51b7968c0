"""The time of exchanges: closed forms of n ranks, S bytes of the whole tensor.

A `Path` is what one rank has: a, the time of an empty message, and B, the rate of a long one, which
short ones do not reach (Hockney).

    N1   on the wire          (bytes + half) / B: a message of `half` bytes has half of the rate
    N2   point to point       a + S/B
    N3   ring, all-gather or reduce-scatter     (n-1) a + (n-1)/n S/B
    N4   ring, all-reduce     2 (n-1) a + 2 (n-1)/n S/B
    N5   broadcast, reduce    (n-1) a + S/B, through a chain
    N6   all-to-all           max((n-1) a + (n-1)/n S/B, n S / (4 bisection))
    N8   PAT                  log2(n) a / 3.5 + 2.8 us n + (n-1)/n S / (0.75 B), one rank a host
    N9   summed by switches   2 d a + S / min(B, A), d tiers
    N10  what a switch sums   A = min(rate, slots * payload / round trip)
    N11  hierarchical         N3 in a host, N4 of each part between hosts, N3 in a host
    N13  as measured          2 (n-1)/n S / bus bandwidth at S; no less than the shortest measured
    N15  all-to-all, n ranks in domains of k    (n-1) a + max((k-1)/n S/B_in, (n-k)/n S/B)

One rank exchanges nothing and takes no time. Sources: NCCL's tuning code (N3, N4, N8, N9);
nccl-tests (N13); derived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from luwu.predict.hardware.curves import Curve, Notes

PAT_SHARE = 0.75
"""Share of the bus bandwidth that NCCL's trees reach; its own tuning has this number."""
PAT_RANK_S = 2.8e-6
PAT_LATENCY_SHARE = 3.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The network of one rank, in each direction."""

    latency_s: float
    rate: float
    """Bytes a second of a long message."""
    half_bytes: float = 0.0
    """A message of so many has half of the rate."""

    def seconds(self, nbytes: float) -> float:
        """Seconds of bytes on the wire, without latency (N1)."""
        return (nbytes + self.half_bytes) / self.rate if nbytes else 0.0


# ---------------------------------------------------------------------- point to point, rings


def send(nbytes: float, path: Path) -> float:
    """From one rank to another (N2)."""
    return path.latency_s + path.seconds(nbytes)


def ring_all_gather(ranks: int, nbytes: float, path: Path) -> float:
    """Also of a reduce-scatter (N3). Source: NCCL, n - 1 steps of 1/n each."""
    if ranks == 1:
        return 0.0
    return (ranks - 1) * path.latency_s + path.seconds((ranks - 1) / ranks * nbytes)


def ring_all_reduce(ranks: int, nbytes: float, path: Path) -> float:
    """A reduce-scatter and an all-gather (N4)."""
    if ranks == 1:
        return 0.0
    return 2 * (ranks - 1) * path.latency_s + path.seconds(2 * (ranks - 1) / ranks * nbytes)


def broadcast(ranks: int, nbytes: float, path: Path) -> float:
    """Pipelined through a chain of ranks; also of a reduction to one (N5)."""
    return (ranks - 1) * path.latency_s + path.seconds(nbytes) if ranks > 1 else 0.0


def all_to_all(ranks: int, nbytes: float, path: Path, bisection_rate: float | None = None) -> float:
    """Each rank sends `nbytes` in all, a share to each other (N6): what a rank can send, or what
    passes the middle of the network, binds."""
    if ranks == 1:
        return 0.0
    own = (ranks - 1) * path.latency_s + path.seconds((ranks - 1) / ranks * nbytes)
    if bisection_rate is None:
        return own
    return max(own, ranks * nbytes / (4 * bisection_rate))


# ---------------------------------------------------------------------- trees


def pat_all_gather(ranks: int, nbytes: float, path: Path) -> float:
    """Parallel aggregated trees, one rank a host (N8). Source: NCCL's tuning."""
    if ranks == 1:
        return 0.0
    latency_s = math.log2(ranks) * path.latency_s / PAT_LATENCY_SHARE + PAT_RANK_S * ranks
    return latency_s + path.seconds((ranks - 1) / ranks * nbytes / PAT_SHARE)


# ---------------------------------------------------------------------- in the network


def switch_all_reduce(tiers: int, nbytes: float, path: Path, aggregate_rate: float) -> float:
    """Summed by switches on the way up, multicast on the way down; the links carry both at once
    (N9)."""
    return 2 * tiers * path.latency_s + nbytes / min(path.rate, aggregate_rate)


def aggregate_rate(slots: int, payload_bytes: float, round_trip_s: float, rate: float) -> float:
    """Rate at which a switch with so many slots can sum: a slot is free after its round trip
    (N10).
    """
    return min(rate, slots * payload_bytes / round_trip_s)


# ---------------------------------------------------------------------- several levels


def hierarchical_all_reduce(
    hosts: int, in_host: int, nbytes: float, inside: Path, between: Path
) -> float:
    """Reduce-scatter in each host, an all-reduce of each part between hosts, all-gather (N11)."""
    scatter = ring_all_gather(in_host, nbytes, inside)
    return 2 * scatter + ring_all_reduce(hosts, nbytes / in_host, between)


def domains_all_to_all(
    domains: int, in_domain: int, nbytes: float, inside: Path, between: Path
) -> float:
    """Each rank sends `nbytes` in all, what stays in its domain beside what leaves it (N15)."""
    ranks = domains * in_domain
    if ranks == 1:
        return 0.0
    latency_s = (in_domain - 1) * inside.latency_s + (ranks - in_domain) * between.latency_s
    stays = inside.seconds((in_domain - 1) / ranks * nbytes)
    return latency_s + max(stays, between.seconds((ranks - in_domain) / ranks * nbytes))


# ---------------------------------------------------------------------- as it was measured


def measured_all_reduce(ranks: int, nbytes: float, bus: Curve, notes: Notes | None = None) -> float:
    """By a curve of bus bandwidths (N13): what nccl-tests call so is bytes * 2(n-1)/n / time.

    No message takes less than the shortest that was measured: latency binds there, which rates
    between its point and the next, of hundreds of times its size, would hide.
    """
    if ranks == 1 or nbytes == 0:
        return 0.0
    shortest_s = bus.sizes[0] / bus.rates[0]
    return 2 * (ranks - 1) / ranks * max(shortest_s, nbytes / bus.rate(nbytes, notes))
