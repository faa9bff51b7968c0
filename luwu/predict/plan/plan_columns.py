"""Columns that documents and tables of all plans have: devices, money, networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from luwu.predict.ask.question_cost import Expense
from luwu.predict.networks.choice import TopologyChoice

SCHEMA: Final = 2
"""2: bottlenecks and what is to be hidden are identifiers (`disk_read`)."""
SHOWN: Final = 12
ORDERS: Final = {
    "tokens_per_s": "", "first_token_s": ", soonest first tokens first",
    "token_s": ", fastest tokens first", "dollars_per_million_tokens": ", cheapest tokens first",
    "capex": ", least to buy first", "watts": ", least power first",
}  # fmt: skip
"""End of a list's title, by the goal that orders it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Columns of one configuration."""

    devices: int
    price: float | None
    """Dollars for a million tokens."""
    expense: Expense | None
    topology: TopologyChoice | None

    @property
    def document(self) -> dict[str, Any]:
        """Without the number of devices, which each plan tells in its own words."""
        said: dict[str, Any] = {}
        if self.topology is not None:
            said["topology"] = self.topology.kind
        if self.expense is not None:
            said["dollars_per_million_tokens"] = self.price
            if self.expense.bill is not None:
                said |= {"capex": self.expense.bill.capex, "watts": self.expense.bill.watts}
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which of the columns a table has: those that tell its rows apart."""

    devices: bool
    costs: bool
    bought: bool
    networks: bool

    @staticmethod
    def of(rows: Iterable[Shared], *, devices: bool) -> Columns:
        """Columns of a table with these rows."""
        shown = list(rows)
        spent = [each.expense for each in shown if each.expense is not None]
        return Columns(
            devices=devices, costs=bool(spent),
            bought=any(each.bill is not None for each in spent),
            networks={each.topology for each in shown} != {None},
        )  # fmt: skip

    @property
    def head(self) -> list[str]:
        """Their names."""
        names = {
            f"{'devices':>7}": self.devices, f"{'USD/Mtoken':>10}": self.costs,
            f"{'MUSD':>8} {'kW':>9}": self.bought, f"{'network':<16}": self.networks,
        }  # fmt: skip
        return [name for name, has in names.items() if has]

    def cells(self, row: Shared) -> list[str]:
        """Cells of one row."""
        found = []
        if self.devices:
            found.append(f"{row.devices:7,}")
        if self.costs:
            found.append(f"{row.price or 0.0:10,.3f}")
        if self.bought and row.expense is not None and row.expense.bill is not None:
            bill = row.expense.bill
            found.append(f"{bill.capex / 1e6:8,.2f} {bill.watts / 1e3:9,.1f}")
        if self.networks:
            found.append(f"{row.topology.kind if row.topology is not None else '-':<16}")
        return found
