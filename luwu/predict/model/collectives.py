"""The time of exchanges: closed forms of n ranks, S bytes of the whole tensor; and beside compute.

A `Path` is what one rank has: a, the time of an empty message, and B, its rate (Hockney).

    N1   on the wire          S/B
    N2   point to point       a + S/B
    N3   ring, all-gather or reduce-scatter     (n-1) a + (n-1)/n S/B
    N4   ring, all-reduce     2 (n-1) a + 2 (n-1)/n S/B
    N11  hierarchical         N3 in a host, N4 of each part between hosts, N3 in a host
    N13  as measured          2 (n-1)/n S / bus bandwidth at S; no less than the shortest measured
    N15  all-to-all, n ranks in domains of k    (n-1) a + max((k-1)/n S/B_in, (n-k)/n S/B)

One rank exchanges nothing and takes no time. Sources: NCCL's tuning code (N3, N4);
nccl-tests (N13); derived.

    V1  while both run, compute goes on at the rate r = 1 - kappa, communication at eta
        C/r >= M/eta    C + (1 - r) M/eta          communication is hidden
        otherwise       C/r + M - eta C/r          compute is
    V2  a flat ring eta = 1: one port of a host limits it, and no device. Steps of ZeRO-3 on 1,120
                    and 2,240 devices are equal, and the exchange alone, though compute halves

Collectives that run on the device itself take some of it (kappa) and lose some of their bandwidth
to it (eta); a SmartNIC does neither. Source: derived; the two numbers are fitted or published.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.predict.hardware.hardware import Curve, Notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The network of one rank, in each direction."""

    latency_s: float
    rate: float
    """Bytes a second."""

    def seconds(self, nbytes: float) -> float:
        """Seconds of bytes on the wire, without latency (N1)."""
        return nbytes / self.rate


def send(nbytes: float, path: Path) -> float:
    """From one rank to another (N2)."""
    return path.latency_s + path.seconds(nbytes)


def ring_all_gather(ranks: int, nbytes: float, path: Path) -> float:
    """Also of a reduce-scatter (N3). Source: NCCL, n - 1 steps of 1/n each."""
    return (ranks - 1) * path.latency_s + path.seconds((ranks - 1) / ranks * nbytes)


def ring_all_reduce(ranks: int, nbytes: float, path: Path) -> float:
    """A reduce-scatter and an all-gather (N4)."""
    return 2 * ring_all_gather(ranks, nbytes, path)


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
    latency_s = (in_domain - 1) * inside.latency_s + (ranks - in_domain) * between.latency_s
    stays = inside.seconds((in_domain - 1) / ranks * nbytes)
    return latency_s + max(stays, between.seconds((ranks - in_domain) / ranks * nbytes))


def measured_all_reduce(ranks: int, nbytes: float, bus: Curve, notes: Notes | None = None) -> float:
    """By a curve of bus bandwidths (N13): what nccl-tests call so is bytes * 2(n-1)/n / time.

    No message takes less than the shortest that was measured: latency binds there, which rates
    between its point and the next, of hundreds of times its size, would hide."""
    shortest_s = bus.sizes[0] / bus.rates[0]
    return 2 * (ranks - 1) / ranks * max(shortest_s, nbytes / bus.rate(nbytes, notes))


KAPPA = 0.15
"""Share of a device's compute that collectives on it take. Source: Calculon's prior."""
KAPPA_NETWORK = 0.02
"""The same of messages over the network. Source: Calculon's prior for InfiniBand."""
ETA = {1: 1.0, 2: 0.98, 4: 0.74, 8: 0.69}
"""Share of a collective's bandwidth that is left beside a matrix product, by ranks. Source: DisDP,
which gives the gain of collectives off the device: 2, 35 and 44 %."""


def eta(ranks: int) -> float:
    """`ETA` between its points, and the last one beyond."""
    if ranks >= 8:
        return ETA[8]
    low = max(each for each in ETA if each <= ranks)
    high = min(each for each in ETA if each >= ranks)
    share = (ranks - low) / (high - low) if high > low else 0.0
    return ETA[low] + share * (ETA[high] - ETA[low])


def exposed_s(compute: float, exchange: float, *, kappa: float, eta: float) -> float:
    """Seconds of both at once beyond the compute alone (V1); the exchange may begin with it."""
    slowed = compute / (1 - kappa)
    if slowed >= exchange / eta:
        seconds = compute + kappa * exchange / eta
    else:
        seconds = slowed + exchange - eta * slowed
    return seconds - compute
