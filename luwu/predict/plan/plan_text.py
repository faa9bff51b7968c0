"""A plan as a document, and as a table for people."""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import identifier
from luwu.predict.ask.answer import asked
from luwu.predict.model.job import TrainingJob
from luwu.predict.plan.planner import Found, Plan

SCHEMA: Final = 3
"""3: a plan is of training and of one number of devices, and all its rows are closed forms."""
SHOWN: Final = 12
_ORDERS: Final = {
    "tokens_per_s": "", "dollars_per_million_tokens": ", cheapest tokens first",
    "capex": ", least to buy first", "watts": ", least power first",
}  # fmt: skip
"""End of the list's title, by the goal that orders it."""


def plan_document(found: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal, "goal": found.goal,
        "systems": [
            {
                "system": each.system,
                "why": each.why,
                "tokens_per_s": None if each.best is None else each.best.tokens_per_s,
            }
            for each in found.systems
        ],
        "best": [_row_document(each) for each in found.best],
    }  # fmt: skip


def _row_document(found: Found) -> dict[str, Any]:
    job = found.question.job
    said: dict[str, Any] = {
        "system": found.question.system, "step_s": found.step.seconds,
        "tokens_per_s": found.tokens_per_s, "left_bytes": found.left_bytes,
        "binding": identifier(found.step.binding),
        "asked": asked(found.question)
        | {"expert_tensor": job.expert_width, "ends_as_layers": job.ends_as_layers},
    }  # fmt: skip
    if found.question.topology is not None:
        said["topology"] = found.question.topology.kind
    if found.expense is not None:
        said["dollars_per_million_tokens"] = found.dollars_per_million_tokens
        if found.expense.bill is not None:
            said |= {"capex": found.expense.bill.capex, "watts": found.expense.bill.watts}
    return said


def plan_text(found: Plan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    more = f", {found.refused} that cannot be" if found.refused else ""
    lines = _systems(found)
    lines += [
        f"{found.tried} configurations, {found.too_large} of them too large for a device{more}; "
        f"{len(found.best)} that no other beats{_ORDERS[found.goal]}:",
        _head(found.best[0]),
        *map(_line, found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first rejected: {found.first_refusal}")
    return "\n".join(lines)


def _systems(found: Plan) -> list[str]:
    """A line for each system that was asked for, if there are several."""
    if len(found.systems) < 2:
        return []
    return [
        f"{each.system:<13} "
        + ("" if each.best is None else f"{each.best.tokens_per_s:,.0f} tokens/s at best, ")
        + (each.why or "shown below")
        for each in found.systems
    ] + [""]


def _head(first: Found) -> str:
    """Columns of costs and networks where there are any: then all rows have them."""
    own = [f"{'tokens/s':>12} {'step':>10} {'left':>8}"]
    if first.expense is not None:
        own.append(f"{'USD/Mtoken':>10}")
        own += [f"{'MUSD':>8} {'kW':>9}"] if first.expense.bill is not None else []
    own += [f"{'network':<16}"] if first.question.topology is not None else []
    return "  ".join([*own, f"{'system':<13}", "degrees, micro-batch, again"])


def _line(each: Found) -> str:
    job, spent = each.question.job, each.expense
    own = [
        f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {each.left_bytes / 2**30:4.1f} GiB"
    ]
    if spent is not None:
        own.append(f"{each.dollars_per_million_tokens or 0.0:10,.3f}")
        bill = spent.bill
        own += [f"{bill.capex / 1e6:8,.2f} {bill.watts / 1e3:9,.1f}"] if bill is not None else []
    own += [f"{each.question.topology.kind:<16}"] if each.question.topology is not None else []
    what = f"{_degrees(job)}, {job.micro_batch}, {job.recompute}; bottleneck: {each.step.binding}"
    return "  ".join([*own, f"{each.question.system:<13}", what])


def _degrees(job: TrainingJob) -> str:
    """Tensor, pipeline, virtual, data; context (c), experts (e, of width w) and ends as layers
    where there are any."""
    more = f" c{job.context}" if job.context > 1 else ""
    more += f" e{job.expert} w{job.expert_width}" if job.spreads_experts else ""
    more += " ends" if job.ends_as_layers else ""
    return f"t{job.tensor} p{job.pipeline} v{job.virtual} d{job.data}{more}"
