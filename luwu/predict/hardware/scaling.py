"""Devices and networks that are not there yet: those of today, some generations later.

    [scaling.two-years]             a user's own file; each factor is of one generation
    logic = 2.0
    memory = 1.5
    network = {value = 2.0, source = "the road map of ..."}

    [device.H100-later]
    like = "H100-80"
    scaling = "two-years"
    generations = 2                 1 unless given

    Q1  a rate or size    of today times factor^generations
    Q2  an exchange       t_0 + (t - t_0)/factor^generations, where t_0 is that of the shortest that
                          was measured: latency does not shrink with rates

No publication has these factors: without a source a factor is an assumption of the user, and
numbers derived from it are tagged so. Curves of products keep their shape: a product of the same
size reaches the same share. Power, prices and latencies are unchanged unless given.
Source: derived.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from luwu.predict.hardware.curves import Curve
from luwu.predict.hardware.hardware import Scaling

ASSUMED: Final = "assumption of the user"
SCALED: Final[dict[str, dict[str, str]]] = {
    "device": {
        "bf16": "logic", "fp8": "logic", "fp4": "logic", "matmul_bf16": "logic",
        "matmul_fp8": "logic", "memory_rate": "memory", "memory_bytes": "capacity",
        "domain_rate": "network", "all_reduce": "network", "host_rate": "network",
    },
    "network": {"rate": "network", "stream_rate": "network"},
}  # fmt: skip
"""Kinds that can be scaled: their keys, and the factor of each."""


def factors(entry: Any, scaling: Scaling, generations: int) -> dict[str, float]:
    """Factors of the changed numbers of an entry (Q1)."""
    found = {}
    for key, axis in SCALED[type(entry).__name__.lower()].items():
        factor = getattr(scaling, axis) ** generations
        if getattr(entry, key) is not None and factor != 1:
            found[key] = factor
    return found


def scale(entry: Any, scaling: Scaling, generations: int) -> Any:
    """A device or a network of the catalogue, so many generations later."""
    values: dict[str, Any] = {}
    for key, factor in factors(entry, scaling, generations).items():
        value = getattr(entry, key)
        if not isinstance(value, Curve):
            values[key] = value * factor
        elif key == "all_reduce":
            values[key] = _later(value, factor)
        else:
            rates = tuple(rate * factor for rate in value.rates)
            values[key] = dataclasses.replace(value, rates=rates)
    return dataclasses.replace(entry, **values)


def _later(bus: Curve, factor: float) -> Curve:
    """Bus bandwidths with the latency of today (Q2)."""
    shortest_s = bus.sizes[0] / bus.rates[0]
    rates = tuple(
        size / (shortest_s + (size / rate - shortest_s) / factor)
        for size, rate in zip(bus.sizes, bus.rates, strict=True)
    )
    return dataclasses.replace(bus, rates=rates)
