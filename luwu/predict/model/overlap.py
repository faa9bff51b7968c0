"""Compute and communication at once: what is hidden, and what each costs the other.

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


@dataclass(frozen=True, slots=True)
class Overlapped:
    """Seconds of two activities that overlap."""

    seconds: float
    """In all."""
    exposed: float
    """Seconds of it beyond the compute alone."""


def overlapped(compute: float, exchange: float, *, kappa: float, eta: float) -> Overlapped:
    """Seconds of both at once (V1); the exchange may begin with the compute."""
    slowed = compute / (1 - kappa)
    if slowed >= exchange / eta:
        seconds = compute + kappa * exchange / eta
    else:
        seconds = slowed + exchange - eta * slowed
    return Overlapped(seconds, seconds - compute)
