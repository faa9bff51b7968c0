"""Columns that documents and tables of all plans have: devices, money, networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from luwu.predict.plan.planner import Found
from luwu.predict.plan.planner_inference import FoundInference

AnyFound: TypeAlias = Found | FoundInference
SCHEMA: Final = 2
"""2: bottlenecks and what is to be hidden are identifiers (`disk_read`)."""
SHOWN: Final = 12
ORDERS: Final = {
    "tokens_per_s": "", "first_token_s": ", soonest first tokens first",
    "token_s": ", fastest tokens first", "dollars_per_million_tokens": ", cheapest tokens first",
    "capex": ", least to buy first", "watts": ", least power first",
}  # fmt: skip
"""End of a list's title, by the goal that orders it."""


def shared_document(row: AnyFound) -> dict[str, Any]:
    """Without the number of devices, which each plan tells in its own words."""
    said: dict[str, Any] = {}
    if row.question.topology is not None:
        said["topology"] = row.question.topology.kind
    if row.expense is not None:
        said["dollars_per_million_tokens"] = row.dollars_per_million_tokens
        if row.expense.bill is not None:
            said |= {"capex": row.expense.bill.capex, "watts": row.expense.bill.watts}
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which of the columns a table has: those that tell its rows apart."""

    devices: bool
    costs: bool
    bought: bool
    networks: bool

    @staticmethod
    def of(rows: Iterable[AnyFound], *, devices: bool) -> Columns:
        """Columns of a table with these rows."""
        shown = list(rows)
        spent = [each.expense for each in shown if each.expense is not None]
        return Columns(
            devices=devices, costs=bool(spent),
            bought=any(each.bill is not None for each in spent),
            networks={each.question.topology for each in shown} != {None},
        )  # fmt: skip

    @property
    def head(self) -> list[str]:
        """Their names."""
        names = {
            f"{'devices':>7}": self.devices, f"{'USD/Mtoken':>10}": self.costs,
            f"{'MUSD':>8} {'kW':>9}": self.bought, f"{'network':<16}": self.networks,
        }  # fmt: skip
        return [name for name, has in names.items() if has]

    def cells(self, row: AnyFound) -> list[str]:
        """Cells of one row."""
        found = []
        if self.devices:
            found.append(f"{row.devices:7,}")
        if self.costs:
            found.append(f"{row.dollars_per_million_tokens or 0.0:10,.3f}")
        if self.bought and row.expense is not None and row.expense.bill is not None:
            bill = row.expense.bill
            found.append(f"{bill.capex / 1e6:8,.2f} {bill.watts / 1e3:9,.1f}")
        if self.networks:
            topology = row.question.topology
            found.append(f"{topology.kind if topology is not None else '-':<16}")
        return found
