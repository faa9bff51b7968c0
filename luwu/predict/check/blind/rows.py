"""One prediction of a configuration whose published result is not known here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BlindRow:
    """A number with its unit, and what it is of."""

    group: str
    name: str
    """Configuration and quantity, for people."""
    value: float
    unit: str
    """s, ms, token/s (in all), token/s/device, TFLOP/s/device, GiB, ratio, share, Gbit/s, ..."""
    configuration: dict[str, Any]
    assumptions: tuple[str, ...] = ()
    """What the configuration does not say."""
    extrapolated: dict[str, str] = field(default_factory=dict)
    """Measured curves that were left."""
    alternative_to: str = ""
    """Name of the row that counts, of one that has another assumption."""

    def to_json(self) -> dict[str, Any]:
        """As `docs/predict/blind.json` has it; twelve digits, which machines agree on."""
        alternative = {"alternative_to": self.alternative_to} if self.alternative_to else {}
        return {
            "group": self.group, "name": self.name, "value": float(f"{self.value:.12g}"),
            "unit": self.unit, "configuration": self.configuration,
            "assumptions": list(self.assumptions), "extrapolated": self.extrapolated,
            **alternative,
        }  # fmt: skip
