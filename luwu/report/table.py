"""The comparison as plain text: a column for each arm."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from luwu.base.quantities import format_bytes
from luwu.report.lanes import WAIT

Row = tuple[str, Callable[[dict[str, Any]], str]]

LOSS_STEPS = 20
EARLY_PAGES = "pages_updated_before_last_push_ratio"
EARLY_PULLS = "pull_before_use_ratio"


def groups() -> dict[str, list[Row]]:
    """The rows by what they are about: a name, and the form of an arm's entry."""
    return {
        "Result": [
            ("loss, first step", lambda arm: _loss(arm["loss"][:1])),
            (f"loss, mean of last {LOSS_STEPS}", lambda arm: _loss(arm["loss"][-LOSS_STEPS:])),
            ("weights digest", lambda arm: (arm["weights_digest"] or "-")[:12]),
        ],
        "Time": [
            (
                "processes x compute threads",
                lambda arm: f"{arm['processes']} x {arm['compute_threads']}",
            ),
            ("step time, median", lambda arm: _seconds(arm["step_seconds_median"])),
            ("step time, 10 % to 90 %", lambda arm: spread_text(arm["step_seconds"])),
            ("bound by", lambda arm: arm.get("bound_by") or "-"),
            ("tokens/s", lambda arm: _count(arm["tokens_per_second"])),
            ("pages updated before last push", lambda arm: _overlap(arm, EARLY_PAGES)),
            ("pulls there before use", lambda arm: _overlap(arm, EARLY_PULLS)),
        ],
        "Memory": [
            ("worker memory, peak", lambda arm: _memory(arm, "worker")),
            (
                "worker parameters of its own",
                lambda arm: _bytes(arm["worker_parameter_bytes_peak"]),
            ),
            ("worker optimizer state", lambda arm: _bytes(arm["worker_optimizer_bytes"])),
            ("GPU memory, peak", lambda arm: _bytes(arm.get("device_bytes_max"))),
            ("switch memory, peak", lambda arm: _memory(arm, "switch")),
            ("switch memory budget", lambda arm: _bytes(arm.get("switch_memory_budget_bytes"))),
            ("node memory, peak", lambda arm: _memory(arm, "node", "weights in place")),
            ("node memory budget", lambda arm: _bytes(arm["memory_budget_bytes"])),
            ("all memory, peak (sum of Pss)", lambda arm: _bytes(arm.get("memory_peak_bytes"))),
            ("node state, one side", lambda arm: _bytes(arm["node_state_bytes"])),
        ],
        "Network": [
            ("pushed by workers", lambda arm: _network(arm, "push")),
            ("pulled by workers", lambda arm: _network(arm, "pull")),
            ("into the node", lambda arm: _network(arm, "into_node")),
            ("out of the node", lambda arm: _network(arm, "out_of_node")),
            ("headers", lambda arm: _network(arm, "headers")),
            ("emulated links, received", lambda arm: _links(arm, "bytes", "received")),
            ("emulated links, dropped", lambda arm: _links(arm, "messages", "dropped")),
            ("emulated links, repeated", lambda arm: _links(arm, "messages", "repeated")),
            ("switch slots, most in use", lambda arm: _slots(arm, "slots_peak")),
            ("contributions without a slot", lambda arm: _slots(arm, "raw_count")),
        ],
        "Disk": [
            ("read from disk", lambda arm: _of(arm["disk_bytes"], "read")),
            ("written to disk", lambda arm: _of(arm["disk_bytes"], "written")),
            ("read, the kernel's count", lambda arm: _of(arm["disk_bytes_kernel"], "read")),
            ("written, the kernel's count", lambda arm: _of(arm["disk_bytes_kernel"], "written")),
            ("on disk", lambda arm: _bytes(arm["disk_space_bytes"])),
        ],
    }  # fmt: skip


def grouped_rows(document: dict[str, Any]) -> list[tuple[str, list[list[str]], bool]]:
    """Groups of rows that an arm fills: name, rows, and whether it is the last group, of all rows
    that only one of several arms fills."""
    arms = document["arms"]
    found: list[tuple[str, list[list[str]], bool]] = []
    inside: list[list[str]] = []
    for group, rows in groups().items():
        shared: list[list[str]] = []
        for name, write in rows:
            cells = [write(arm) for arm in arms]
            filled = sum(cell != "-" for cell in cells)
            if filled:
                alone = filled == 1 < len(cells)
                (inside if alone else shared).append([name, *cells])
        if shared:
            found.append((group, shared, False))
    owners = {index for row in inside for index, cell in enumerate(row[1:]) if cell != "-"}
    if inside:
        names = ", ".join(arms[index]["name"] for index in sorted(owners))
        found.append((f"Inside {names}", inside, True))
    return found


def job_text(document: dict[str, Any]) -> str:
    """One line on what was trained, and one on where."""
    job, place = document["job"], document["environment"]
    return (
        f"{job['model']} of {job['parameters']:,} parameters, {job['workers']} workers, "
        f"{job['steps']} steps of {job['tokens_per_step']:,} tokens, {job['dtype']}, "
        f"seed {job['seed']}\n"
        f"measured on {place['cpu']}, {place['cpu_count']} processors, {place['device']}, "
        f"torch {place['torch']}"
    )


def table_text(document: dict[str, Any]) -> str:
    """The table for a terminal; what one of several arms has alone is in the report."""
    header = ["", *(arm["name"] for arm in document["arms"])]
    found = [group for group in grouped_rows(document) if not group[2]]
    table = [header, *(row for _, rows, _ in found for row in rows)]
    widths = widths_of(table)
    lines = [job_text(document), "", line_of(header, widths)]
    for name, rows, _ in found:
        lines += [f"-- {name} ".ljust(sum(widths) + 2 * len(widths) - 2, "-")]
        lines += [line_of(row, widths) for row in rows]
    lines += ["", *notes(document)]
    return "\n".join(lines)


def notes(document: dict[str, Any]) -> list[str]:
    """Remarks that the table needs to be read rightly, a sentence each."""
    found = [
        f"{names_text(each)} end with the same weights, bit for bit."
        for each in same_weights(document)
    ]
    stored = {key: document["job"].get(key) for key in ("state_dtype", "master_dtype")}
    if set(stored.values()) - {None, "float32"}:
        found.append(
            f"Arms luwu keep moments in {stored['state_dtype']} and master weights in "
            f"{stored['master_dtype']}, so their weights are near those of the others, not the "
            "same."
        )
    if len({arm["compute_threads"] for arm in document["arms"]}) > 1:
        found.append(
            "The last bits of weights depend on the number of compute threads, so only digests of "
            "arms with the same number can be equal (OMP_NUM_THREADS=1 makes it the same)."
        )
    if any(arm["memory_budget_bytes"] for arm in document["arms"]):
        found.append(
            "The node's budget is for what it allocates after its start; its peak has Python in it "
            "too, and torch where an update kernel was checked."
        )
    if any(arm.get("bound_by") == WAIT for arm in document["arms"]):
        found.append(
            f"Bound by {WAIT}: no engine was busy for half of a step; processes waited for "
            "messages, for one another, or for a turn on a core that others used."
        )
    linked = [arm["name"] for arm in document["arms"] if arm.get("links")]
    if linked:
        text = "Bytes on emulated links are counted apart from those that the host copied."
        if len(linked) < len(document["arms"]):
            text += (
                f" Only {', '.join(linked)} ran over them: the other arms had the host's own "
                "network, so step times cannot be compared."
            )
        found.append(text)
    if any(arm["disk_bytes"] for arm in document["arms"]):
        found.append(
            "The kernel counts what reached a block device: less than ours where spilled sums stay "
            "in its cache, nothing on a file system in memory."
        )
    return found


def same_weights(document: Mapping[str, Any]) -> list[list[str]]:
    """The arms that end with the same weights, where several do."""
    by_digest: dict[str, list[str]] = {}
    for arm in document["arms"]:
        if arm["weights_digest"]:
            by_digest.setdefault(arm["weights_digest"], []).append(arm["name"])
    return [names for names in by_digest.values() if len(names) > 1]


def names_text(names: Sequence[str]) -> str:
    """`luwu, fsdp and ddp`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _slots(arm: dict[str, Any], what: str) -> str:
    """The slots of a switch that has a fixed number."""
    pool = arm.get("switch") or {}
    if "slots_limit" not in pool:
        return "-"
    return f"{pool[what]} of {pool['slots_limit']}" if what == "slots_peak" else f"{pool[what]:,}"


def spread(seconds: Sequence[float]) -> tuple[float, float]:
    """The times that a tenth of the steps is below, and a tenth above."""
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    deciles = statistics.quantiles(seconds, n=10, method="inclusive")
    return deciles[0], deciles[-1]


def spread_text(seconds: Sequence[float]) -> str:
    """The same for people."""
    low, high = spread(seconds)
    return f"{_seconds(low)} to {_seconds(high)}"


def widths_of(rows: Iterable[Sequence[str]]) -> list[int]:
    """The widths of the columns of a table."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def line_of(row: Sequence[str], widths: Sequence[int], *, left: int = 1) -> str:
    """A row of it; its first columns are aligned to the left, the others to the right."""
    cells = [f"{cell:<{width}}" for cell, width in zip(row[:left], widths, strict=False)]
    cells += [f"{cell:>{width}}" for cell, width in zip(row[left:], widths[left:], strict=True)]
    return "  ".join(cells).rstrip()


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _loss(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.4f}" if values else "-"


def _bytes(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)


def _memory(arm: dict[str, Any], role: str, *shared: str) -> str:
    """The largest peak of a role, beside the plan of its uses; a worker's activations have none."""
    peak = arm.get(f"{role}_peak_rss_bytes")
    if isinstance(peak, list):
        peak = max((each for each in peak if each is not None), default=None)
    uses = (arm.get("estimate") or {}).get("memory", ())
    planned = sum(use["nbytes"] for use in uses if use["role"] in (role, *shared))
    if peak is None or not planned or role == "worker":
        return _bytes(peak)
    return f"{format_bytes(peak)} of {format_bytes(planned)}"


def _of(record: dict[str, Any] | None, key: str) -> str:
    return "-" if not record else _bytes(record.get(key))


def _network(arm: dict[str, Any], key: str) -> str:
    return _of(arm["network_bytes"], key)


def _links(arm: dict[str, Any], unit: str, kind: str) -> str:
    """A count over all emulated links and directions; of messages, beside all that were sent."""
    rows = arm.get("links")
    if not rows:
        return "-"
    total = sum(row[unit][kind] for row in rows)
    if unit == "bytes":
        return format_bytes(total)
    return f"{total:,} of {sum(row[unit]['sent'] for row in rows):,} messages"


def _overlap(arm: dict[str, Any], key: str) -> str:
    value = (arm["overlap"] or {}).get(key)
    return "-" if value is None else f"{value:.0%}"
