"""The time of operators: a matrix product by its size, all others by the bytes they pass.

O1   product      operations / (rate of its smallest dimension * scale)
O2   pass         bytes / (memory rate * efficiency)
O3   attention    operations / (16-bit peak * efficiency), where it is one kernel
O4   slow device  each of these longer by the given factor

The rate of a product is a measured curve of the device. The scale is fitted, one number for each
family of devices: what frameworks lose or gain against that measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from luwu.base.errors import ConfigError
from luwu.predict.hardware.curves import Notes
from luwu.predict.hardware.hardware import Device

WIRE_BYTES = 2
"""Bytes of an element in 16 bits."""


@dataclass(slots=True, kw_only=True)
class Operators:
    """A device at work."""

    device: Device
    precision: str = "bf16"
    """Precision of products of weights: bf16 or fp8. Attention is in 16 bits."""
    matmul_scale: float = 1.0
    attention_efficiency: float = 0.5
    slowdown: float = 1.0
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        if self.device.peak(self.precision) is None:
            has = [each for each in ("bf16", "fp8", "fp4") if self.device.peak(each)]
            raise ConfigError(
                f"precision: a {self.device.name} has no {self.precision}; it has {', '.join(has)}"
            )

    def matmul(self, rows: float, inner: float, columns: float) -> float:
        """Seconds of [rows, inner] x [inner, columns] (O1, O4)."""
        operations = 2 * rows * inner * columns
        return self.slowdown * operations / self.matmul_rate(min(rows, inner, columns))

    def matmul_rate(self, smallest: float) -> float:
        """Operations a second of a product with this smallest dimension, without a slowdown."""
        curve = self.device.matmul(self.precision)
        peak = self.device.peak(self.precision)
        assert peak is not None
        if curve is None:
            other = self.device.matmul("fp8") or self.device.matmul("bf16")
            if other is None:
                raise ConfigError(
                    f"device.{self.device.name} has no measured curve of matrix products; give "
                    "matmul_bf16, or take that of another by like"
                )
            top = other.rates[-1]
            return peak * other.rate(smallest, self.notes) / top * self.matmul_scale
        return curve.rate(smallest, self.notes) * self.matmul_scale

    def passes(self, nbytes: float) -> float:
        """Seconds to read or write so many bytes of the device's memory (O2, O4)."""
        rate = self.device.memory_rate * self.device.memory_efficiency
        return self.slowdown * nbytes / rate

    def fused_attention(self, operations: float) -> float:
        """Seconds of attention that never writes its scores (O3, O4)."""
        return self.slowdown * operations / (self.device.bf16 * self.attention_efficiency)
