"""What is said of a plan of inference: a document, and the same for people."""

from __future__ import annotations

from typing import Any, Final

from luwu.predict.plan_text import SCHEMA, SHOWN
from luwu.predict.planner_inference import FoundInference, InferencePlan
from luwu.predict.question_sockets import SocketQuestion

_ORDERS: Final = {
    "tokens_per_s": "", "first_token_s": ", soonest first tokens first",
    "token_s": ", fastest tokens first", "dollars_per_million_tokens": ", cheapest tokens first",
    "capex": ", least to buy first", "watts": ", least power first",
}  # fmt: skip
"""What is said of it, by goals."""


def inference_plan_document(found: InferencePlan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal,
        "beyond_budget": found.beyond_budget, "beyond_limits": found.beyond_limits,
        "device_counts": list(found.device_counts), "goal": found.goal,
        "best": [_document(each) for each in found.best],
    }  # fmt: skip


def _document(found: FoundInference) -> dict[str, Any]:
    job, question = found.question.job, found.question
    said: dict[str, Any] = {
        "system": question.system, "tokens_per_s": found.tokens_per_s,
        "first_token_s": found.first_token_s, "token_s": found.token_s, "binding": found.binding,
        "devices": found.devices, "replicas": question.replicas, "batch": job.batch,
        "precision": job.precision, "kv_precision": job.kv_precision,
    }  # fmt: skip
    if isinstance(question, SocketQuestion):
        said["sockets"] = question.job.sockets
    else:
        own = question.job
        said |= {"tensor": own.tensor, "pipeline": own.pipeline, "batching": own.batching}
    if question.topology is not None:
        said["topology"] = question.topology.kind
    if found.expense is not None:
        said["dollars_per_million_tokens"] = found.dollars_per_million_tokens
        if found.expense.bill is not None:
            said |= {"capex": found.expense.bill.capex, "watts": found.expense.bill.watts}
    return said


def inference_plan_text(found: InferencePlan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    left_out = {
        "that cannot be": found.refused, "beyond the budget": found.beyond_budget,
        **{f"beyond {name}_max": count for name, count in found.beyond_limits.items()},
    }  # fmt: skip
    more = "".join(f", {count} {what}" for what, count in left_out.items() if count)
    lines = [
        f"{found.tried} configurations, {found.too_large} of them too large for memory{more}; "
        f"{len(found.best)} that no other beats{_ORDERS[found.goal]}:",
        _head(found),
        *(_line(each, found) for each in found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first that cannot be: {found.first_refusal}")
    return "\n".join(lines)


def _has(found: InferencePlan) -> tuple[bool, bool, bool, bool]:
    """Several numbers of devices, costs, things bought, networks to choose from."""
    spent = [each.expense for each in found.best if each.expense is not None]
    kinds = {each.question.topology for each in found.best}
    bought = any(each.bill is not None for each in spent)
    return len(found.device_counts) > 1, bool(spent), bought, kinds != {None}


def _head(found: InferencePlan) -> str:
    several, costs, bought, networks = _has(found)
    cells = [f"{'tokens/s':>12} {'first token':>12} {'between':>10}"]
    cells += [f"{'devices':>7}"] if several else []
    cells += [f"{'USD/Mtoken':>10}"] if costs else []
    cells += [f"{'MUSD':>8} {'kW':>9}"] if bought else []
    cells += [f"{'network':<16}"] if networks else []
    return "  ".join([*cells, "degrees, batch, precisions"])


def _line(each: FoundInference, found: InferencePlan) -> str:
    several, costs, bought, networks = _has(found)
    first, between = 1e3 * each.first_token_s, 1e3 * each.token_s
    cells = [f"{each.tokens_per_s:12,.0f} {first:9,.1f} ms {between:7,.2f} ms"]
    if several:
        cells.append(f"{each.devices:7,}")
    if costs:
        cells.append(f"{each.dollars_per_million_tokens or 0.0:10,.3f}")
    if bought and each.expense is not None and each.expense.bill is not None:
        bill = each.expense.bill
        cells.append(f"{bill.capex / 1e6:8,.2f} {bill.watts / 1e3:9,.1f}")
    if networks:
        topology = each.question.topology
        cells.append(f"{topology.kind if topology is not None else '-':<16}")
    return "  ".join([*cells, f"{_what(each)}; binds: {each.binding}"])


def _what(found: FoundInference) -> str:
    """Ranks of a copy, copies, sequences at once of each, precisions of weights and of the cache;
    batching where there is a choice."""
    question, job = found.question, found.question.job
    rest = f"{job.batch}, {job.precision}/{job.kv_precision}"
    if isinstance(question, SocketQuestion):
        return f"s{question.job.sockets} r{question.replicas}, {rest}"
    own = question.job
    return f"t{own.tensor} p{own.pipeline} r{question.replicas}, {rest}, {own.batching}"
