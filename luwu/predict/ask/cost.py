"""`[cost]` of a question: the rent of its machines, per hour and per token.

    B1  a second      devices * rent + optimizer nodes * rent
    B2  tokens        tokens per second / dollars per second; its inverse for a million tokens

The rent of a device is that of its part of the host and the network too. What is bought has a rent:
price / life + power * PUE * price of energy. An unknown rent is an error that names it, not a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from luwu.base.errors import ConfigError

HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Rents, in dollars per second."""

    device_rental: float
    """Rent of a device or, if the ranks are sockets, of a host."""
    node_rental: float | None = None
    """Rent of an optimizer node; None if it was not given."""

    def dollars_per_s(self, ranks: int, nodes: int = 0) -> float:
        """The rent of `ranks` devices or hosts, and of `nodes` nodes (B1). Raises ConfigError."""
        if nodes and self.node_rental is None:
            raise ConfigError(f"cost.node_rental is missing: {nodes} optimizer nodes take part")
        if not nodes and self.node_rental is not None:
            raise ConfigError("cost.node_rental: nothing here has an optimizer node; leave it out")
        total = ranks * self.device_rental + nodes * (self.node_rental or 0.0)
        if not total > 0:
            raise ConfigError("cost.device_rental: all is free; give a rent above zero")
        return total


def cost_document(tokens_per_s: float, dollars_per_s: float) -> dict[str, float]:
    """Dollars per hour and per million tokens, and tokens per dollar (B2)."""
    of_a_dollar = tokens_per_s / dollars_per_s
    return {
        "dollars_per_h": HOUR_S * dollars_per_s,
        "dollars_per_million_tokens": 1e6 / of_a_dollar, "tokens_per_dollar": of_a_dollar,
    }  # fmt: skip


def cost_text(said: dict[str, float]) -> list[str]:
    """The same for people."""
    return [
        f"rented: {said['dollars_per_h']:,.2f} USD per hour, "
        f"{said['dollars_per_million_tokens']:,.3g} USD per million tokens, "
        f"{said['tokens_per_dollar']:,.0f} tokens per dollar"
    ]
