"""The page of `gpu_check.py`: its document in Markdown, with a verdict first."""

from __future__ import annotations

from typing import Any

from luwu.base.quantities import format_bytes

_HEADINGS = (
    "arm", "tokens/s", "step", "spread", "GPU memory, a worker", "all workers", "host, a worker",
    "node", "copies a step", "behind compute", "",
)  # fmt: skip
SMOKE = "This is **no GPU result**: the arms ran on a CPU, over gloo, to show that the check works."


def page_text(document: dict[str, Any]) -> str:
    """The whole page."""
    place = document["environment"]
    parts = [
        "# The arms of the GPU check, on a CPU" if document["smoke"]
        else f"# LuWu on {document['gpus']} x {document['gpu']}",
        "",
        *([SMOKE, ""] if document["smoke"] else []),
        f"Commit {place['commit'] or 'unknown'}, {place['date']}; Python {place['python']}, torch "
        f"{place['torch']}, CUDA {document['cuda'] or 'none'}; {place['cpu']}, {place['cores']} "
        f"cores, compiler {'found' if document['has_compiler'] else 'missing: slow kernels'}. "
        f"Took {document['took_s']:.0f} s. All numbers are *measured*.",
        "",
        "## Verdict",
        "",
        *(f"- {line}" for line in verdict(document)),
        "",
        *_table(document["rows"]),
        *_ratios(document["claims"]),
        "A step lasts from the last worker's end of one to that of the next; every arm trains the "
        "same samples in it. GPU memory is the most that torch allocated. Copies are those between "
        "host and device, from torch's profiler in steps that are not timed; *behind compute* is "
        "the share of their time in which kernels of the compute stream ran.",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def verdict(document: dict[str, Any]) -> list[str]:
    """What passed, what did not, and what did not run: a sentence each."""
    tests = document["tests"]
    lines = [
        f"GPU tests: {tests['passed']} passed, {len(tests['failed'])} failed, {tests['skipped']} "
        f"skipped, in {tests['seconds']:.0f} s"
        + ("." if not tests["error"] else f"; {tests['error']}.")
    ]
    lines += [f"Failed test: {_line(text)}" for text in tests["failed"]]
    lines.append(f"Arms: {len(document['rows'])} ran, {len(document['failed'])} failed.")
    lines += [f"Failed: {name}: {_line(text)}" for name, text in document["failed"].items()]
    lines += [f"Not run: {name}: {_line(text)}." for name, text in document["not_run"].items()]
    if document["is_gpu_result"]:
        lines += [
            f"Copies of {each['case']}: {_line(each['copies_missing'])}."
            for each in document["rows"]
            if each["copies"] is None
        ]
    different = document["losses_that_differ"]
    lines += [f"Wrong: {_line(text)}" for text in different]
    if not different and len(document["rows"]) > 1:
        lines.append("The losses of all arms that ran agree.")
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    first = rows[0]
    lines = [
        f"A GPT of {first['parameters']:,} parameters in {first['dtype']}, "
        f"{first['tokens_per_step']:,} tokens a step, on {first['device']}:",
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|---|" + "---:|" * (len(_HEADINGS) - 2) + "---|",
    ]
    for each in rows:
        copies = each["copies"]
        cells = [
            each["case"],
            f"{each['tokens_per_s']:,.0f}",
            f"{each['seconds_median'] * 1000:.1f} ms",
            f"{each['seconds_spread']:.0%}",
            _bytes(each["device_bytes_max"]),
            _bytes(each["device_bytes_all_workers"]),
            _bytes(each["worker_host_bytes_max"]),
            _bytes(each["node_host_bytes"]),
            "-" if copies is None else f"{format_bytes(copies['bytes_a_step'])}, "
            f"{copies['seconds_a_step'] * 1000:.1f} ms",
            "-" if copies is None else f"{copies['behind_compute_ratio']:.0%}",
            each["sharing"],
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _ratios(claims: dict[str, float]) -> list[str]:
    if not claims:
        return []
    lines = ["Ratios of LuWu to others within this run (`_n2`: LuWu with two workers):", ""]
    lines += [f"- `{name}`: {value:.2f}" for name, value in claims.items()]
    return [*lines, ""]


def _bytes(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)


def _line(text: str) -> str:
    """The first line of a text and its last, where a traceback has its error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    ends = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    return ends.replace("|", "/")[:600].rstrip(".")
