"""The time of operators: a matrix product by its size, all others by the bytes they pass.

O1   product      operations / (rate of the cube of as many operations * scale)
O2   pass         bytes / (memory rate * efficiency)
O3   attention    operations / (rate of the largest product in 16 bits * efficiency), where it is
                  one kernel
O4   slow device  each of these longer by the given factor

The rate of a product is a measured curve of the device, of cubes. Where a precision was not
measured, the curve of another one stands for it, twice as fast with half the bits: so the level is
that of a measurement, and the peaks of data sheets are there for utilisation alone. Training and
inference have one rule. The scale is fitted, one number for each kind of kernels: what frameworks
lose or gain against that measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Device, Notes

WIRE_BYTES = 2
"""Bytes of an element in 16 bits."""
FP8_BYTES = 1
BITS = {"bf16": 16, "fp8": 8, "fp4": 4}
"""Of an operand; matrix units are twice as fast with half of them."""


@dataclass(slots=True, kw_only=True)
class Operators:
    """A device at work."""

    device: Device
    precision: str = "bf16"
    """Precision of products of weights: bf16 or fp8. Attention is in 16 bits."""
    matmul_scale: float = 1.0
    attention_efficiency: float = 0.5
    slowdown: float = 1.0
    notes: Notes = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device.peak(self.precision) is None:
            has = [each for each in ("bf16", "fp8", "fp4") if self.device.peak(each)]
            raise ConfigError(
                f"precision: a {self.device.name} has no {self.precision}; it has {', '.join(has)}"
            )

    def matmul(self, rows: float, inner: float, columns: float) -> float:
        """Seconds of [rows, inner] x [inner, columns] (O1, O4)."""
        volume = rows * inner * columns
        return self.slowdown * 2 * volume / self.matmul_rate(volume ** (1 / 3))

    def matmul_rate(self, size: float) -> float:
        """Operations a second of a cube of this size, without a slowdown."""
        return cube_rate(self.device, self.precision, size, self.notes) * self.matmul_scale

    def passes(self, nbytes: float) -> float:
        """Seconds to read or write so many bytes of the device's memory (O2, O4)."""
        rate = self.device.memory_rate * self.device.memory_efficiency
        return self.slowdown * nbytes / rate

    def fused_attention(self, operations: float) -> float:
        """Seconds of attention that never writes its scores (O3, O4)."""
        return self.slowdown * operations / (top_rate(self.device) * self.attention_efficiency)


def cube_rate(device: Device, precision: str, size: float, notes: Notes | None = None) -> float:
    """Operations per second of a product of cubes (O1). Raises ConfigError for a device without a
    measured curve."""
    for measured in (precision, "fp8", "bf16"):
        curve = device.matmul(measured)
        if curve is not None:
            return curve.rate(size, notes) * BITS[measured] / BITS[precision]
    raise ConfigError(
        f"device.{device.name} has no measured curve of matrix products; give matmul_bf16 or "
        "matmul_fp8, or take that of another by like"
    )


def top_rate(device: Device) -> float:
    """Operations per second of the largest product in 16 bits that was measured (O3)."""
    return cube_rate(device, "bf16", math.inf)
