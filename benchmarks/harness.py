"""What all benchmark programs share: where they ran, how arms take turns, how results are written.

    parser = flags("exchange", "What it measures.")        --json FILE|-, --smoke, --repeats N
    rounds = interleave({"ours": run_ours, "theirs": run_theirs}, repeats=5)
    write(arguments.json, document("exchange", rows, claims))

A number is the median over repeats, and its spread is (max - min) / median. Arms take turns, one
measurement each, so that whatever else the machine does hits all alike; a claim is a ratio of
numbers of one run. Every row carries a label: measured, emulated, predicted or cited.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.quantities import parse_bytes

SCHEMA = 1
REPEATS = 5
COPY_BYTES = 256 * 1024 * 1024
"""Of each array of the copy: several times the last-level cache of any machine of today."""

Row = dict[str, Any]


def environment() -> dict[str, Any]:
    """The machine and the versions, without names of hosts or paths."""
    import torch
    import zmq

    return {
        "cpu": _cpu_model(),
        "cores": core_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_worker(workers: int) -> int:
    """Compute threads of each worker, so that all workers together have the machine's cores."""
    return max(1, core_count() // workers)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(values: Sequence[float]) -> float:
    """(max - min) / median."""
    return (max(values) - min(values)) / median(values)


def interleave(
    arms: Mapping[str, Callable[[], float | Sequence[float]]], repeats: int
) -> dict[str, list[float]]:
    """Run all arms in turn, `repeats` rounds: the seconds each gave, in the order measured.

    An arm gives one number or several a round. Every other round goes backwards, so that no arm
    always follows the same one.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(repeats):
        for name in names if number % 2 == 0 else reversed(names):
            found = arms[name]()
            seconds[name] += [found] if isinstance(found, float) else found
    return seconds


def timed(do: Callable[[], object]) -> float:
    """Seconds one call takes."""
    start_ns = SYSTEM_CLOCK.now_ns()
    do()
    return (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9


def row(
    case: str, arm: str, seconds: Sequence[float], *, nbytes: float | None = None,
    workers: int | None = None, dtype: str | None = None, switch: bool | None = None,
    label: str = "measured", **more: Any,
) -> Row:  # fmt: skip
    """A row of the result: the median and spread of seconds, and bytes per second if known."""
    middle = median(seconds)
    return {
        "case": case, "arm": arm, "workers": workers, "dtype": dtype, "switch": switch,
        "label": label, "seconds_median": middle, "seconds_spread": spread(seconds),
        "seconds_min": min(seconds), "measured_count": len(seconds),
        "bytes_per_s": None if nbytes is None else nbytes / middle, **more,
    }  # fmt: skip


def copy_bytes_per_s(threads: int = 2, nbytes: int = COPY_BYTES, repeats: int = 9) -> float:
    """Memory bandwidth of a plain copy, bytes read plus bytes written, all threads together.

    Each thread copies a part of an array of `nbytes` with numpy, which calls memcpy without
    Python's lock. The pages are touched before; the median of the repeats counts.
    """
    source = np.ones(nbytes, dtype=np.uint8)
    target = np.zeros(nbytes, dtype=np.uint8)
    bounds = [nbytes * number // threads for number in range(threads + 1)]
    start, end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def copy(low: int, high: int) -> None:
        for _ in range(repeats + 1):
            start.wait()
            np.copyto(target[low:high], source[low:high])
            end.wait()

    pool = [
        threading.Thread(target=copy, args=pair, daemon=True) for pair in itertools.pairwise(bounds)
    ]
    for thread in pool:
        thread.start()
    seconds = []
    for _ in range(repeats + 1):
        start.wait()
        seconds.append(timed(end.wait))
    for thread in pool:
        thread.join()
    assert int(target[0]) == int(target[-1]) == 1
    return 2 * nbytes / median(seconds[1:])  # the first warms up


def flags(name: str, description: str) -> argparse.ArgumentParser:
    """A parser with the flags every benchmark has. SIGTERM ends one as Ctrl-C does from then on, so
    that what it started ends too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", metavar="FILE|-", help="write the result there; - prints it")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--repeats", type=_positive, help="measurements of each number")
    return parser


def comma_list(text: str) -> list[str]:
    """`a,b` as a list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_count(text: str) -> int:
    """A decimal count: 25M is 25,000,000, 1k is 1,000."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    try:
        value = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        value = math.nan
    if not (value >= 1 and value == int(value)):
        raise ConfigError(f"{text!r} is not a count; write 25M, 100k or 12345")
    return int(value)


def format_count(count: int) -> str:
    """25,000,000 as 25M; what is no round number stays as it is."""
    for scale, letter in ((10**6, "M"), (10**3, "k")):
        if count >= scale and count % (scale // 10) == 0:
            return f"{count / scale:g}{letter}"
    return str(count)


def counts(text: str) -> list[int]:
    """`25M,100M` as numbers; for argparse."""
    return [parse_count(word) for word in comma_list(text)]


def size(text: str) -> int:
    """`1MiB` as bytes; for argparse."""
    return parse_bytes(text)


def document(
    benchmark: str, rows: Sequence[Row], claims: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """The result as it is written."""
    return {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "environment": environment(),
        **more,
        "rows": list(rows),
        "claims": dict(claims),
    }


def write(where: str | None, result: Mapping[str, Any]) -> None:
    """Write a result to a file, or print it for `-`; nothing for None."""
    if where is None:
        return
    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    if where == "-":
        sys.stdout.write(text)
        return
    path = Path(where)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def print_table(headings: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Print columns: words to the left, numbers (already text) to the right."""
    texts = [[str(cell) for cell in line] for line in lines]
    widths = [
        max(len(heading), *(len(line[index]) for line in texts)) if texts else len(heading)
        for index, heading in enumerate(headings)
    ]

    def put(cells: Sequence[str]) -> None:
        aligned = [
            cell.rjust(width) if cell[:1].isdigit() or cell == "-" else cell.ljust(width)
            for cell, width in zip(cells, widths, strict=True)
        ]
        say("  ".join(aligned).rstrip())

    put(list(headings))
    say("  ".join("-" * width for width in widths))
    for line in texts:
        put(line)


def say(text: str) -> None:
    """Print a line for people at once; to stderr, so that `--json -` stays a document."""
    print(text, file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    """The commit of the source, with a plus sign if files differ from it; None if unknown."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *words], capture_output=True, text=True, check=True,
        timeout=10,
    )  # fmt: skip
    return done.stdout.strip()
