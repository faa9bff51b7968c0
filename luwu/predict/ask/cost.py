"""`[cost]` of a question: the rent of its machines, per hour and per token.

    B1  a second      devices * rent + optimizer nodes * rent
    B2  tokens        tokens per second / dollars per second; its inverse for a million tokens

The rent of a device is that of its part of the host and the network too. What is bought has a rent:
price / life + power * PUE * price of energy. An unknown rent is an error that names it, not a zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.hardware import values
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.values import Dimension

_PLACE: Final = "cost."
_KEYS: Final = ("server", "device_rental", "node_rental")
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Rents, in dollars per second."""

    device: float
    """Rent of a device or, if the ranks are sockets, of a host."""
    node: float | None = None
    """Rent of an optimizer node; None if it was not given."""

    def dollars_per_s(self, ranks: int, nodes: int = 0) -> float:
        """The rent of `ranks` devices or hosts, and of `nodes` nodes (B1). Raises ConfigError."""
        if nodes and self.node is None:
            raise ConfigError(f"{_PLACE}node_rental is missing: {nodes} optimizer nodes take part")
        if not nodes and self.node is not None:
            raise ConfigError(
                f"{_PLACE}node_rental: nothing here has an optimizer node; leave it out"
            )
        total = ranks * self.device + nodes * (self.node or 0.0)
        if not total > 0:
            raise ConfigError(f"{_PLACE}device_rental: all is free; give a rent above zero")
        return total


def make_costs(table: Mapping[str, Any], catalogue: Catalogue) -> Costs:
    """Costs of a table. Raises ConfigError, which names the key."""
    values.check_keys(_PLACE, table, _KEYS, () if "server" in table else ("device_rental",))
    rents = {
        key: values.quantity_of(_PLACE + key, table[key], Dimension.DOLLARS_PER_S)
        for key in ("device_rental", "node_rental")
        if key in table
    }
    if "device_rental" not in rents:
        name = values.text_of(_PLACE, table, "server")
        rents["device_rental"] = catalogue.find("server", name, f"{_PLACE}server").device_rental
    return Costs(device=rents["device_rental"], node=rents.get("node_rental"))


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
