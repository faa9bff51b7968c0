"""How much of the disk's rate does the optimizer's pipeline reach?

Metric:   bytes_per_s = bytes read and written by one step over the whole state / seconds of a step,
          12 + 12 bytes a parameter; a step includes `prepare` and `decide`.
Ceiling:  `raw`: threads that read and write the same page bodies with direct I/O in the same order,
          as many at once, without checksums and arithmetic (`disk_raw.py`).
Checked:  the weights after all steps against the update kernel alone, page by page: equal digests.
Left out: the network, pulls, spilled sums. Gradients lie in memory.

Both arms work in a temporary directory; TMPDIR or --dir says on which disk. No page is resident:
each is read and written every step. The budget is 128 chunks, as with the default chunk and
128 MiB; threads, the chunks that travel together, and the pages that one request reads follow from
it by the node's plan. `raw` reads and writes page by page.

--in-ram: the same pipeline with all pages in RAM, in two arms: `pages` writes each of them in every
step (12 bytes a parameter), `log` the sums of its updates, and a page once in 8 steps (5). A
measurement is 8 steps then, and what counts is seconds a step of `pages` / those of `log`. With
--apart one arm ends before the other begins, where RAM has no room for both.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import get_args

from benchmarks import harness
from benchmarks.disk_pipeline import Case, PipelineArm
from benchmarks.disk_raw import RawPages
from benchmarks.harness import Row, say
from luwu.base.errors import LuwuError
from switch_emu.store import Durability

WARM_UPS = 2
"""Steps: each side of every page is written once before anything is measured."""
LEVELS: list[Durability] = ["process", "step"]
MEANINGS = {
    "of_raw": "rate of the pipeline / rate of raw, worst case; more is better",
    "log_speedup": "with --in-ram: seconds a step of pages / of log, worst case; more is better",
    "log_bytes": "with --in-ram: bytes that log writes a parameter and step",
}
SLOTS = 8


def run_case(case: Case, directory: Path, *, steps: int, repeats: int) -> list[Row]:
    """Both arms in turn; their rows."""
    flush = case.durability == "step"
    with PipelineArm(directory, case) as pipeline:
        in_flight = case.plan.updates_count
        with RawPages(directory, pipeline.config, in_flight=in_flight, flush=flush) as raw:
            arms: dict[str, RawPages | PipelineArm] = {"raw": raw, "pipeline": pipeline}
            for arm in arms.values():
                arm.run(WARM_UPS)
            seconds = harness.interleave(
                {name: partial(seconds_a_step, arm, steps) for name, arm in arms.items()}, repeats
            )
        pipeline.check()
        return [
            harness.row(
                case.name, name, found, nbytes=2 * pipeline.config.state_bytes, dtype="float32",
                params=case.params, chunk_bytes=case.chunk_bytes, durability=case.durability,
                pages_in_flight=in_flight, pages_together=case.plan.pages_together,
                extent_chunks=case.plan.extent_chunks, pipeline_bytes=case.plan.pipeline_bytes,
                direct_io=pipeline.direct_io,
            )
            for name, found in seconds.items()
        ]  # fmt: skip


def run_in_ram(case: Case, directory: Path, *, repeats: int, apart: bool) -> list[Row]:
    """The arms of a state in RAM in turn, or `apart`, one after the other; their rows."""
    arms: dict[str, Callable[[], PipelineArm]] = {
        "pages": partial(PipelineArm, directory / "pages", case, in_ram=True),
        "log": partial(PipelineArm, directory / "log", case, slots=SLOTS),
    }
    if not apart:
        return _measured_in_ram(case, arms, repeats)
    rows = []
    for name, arm in arms.items():
        rows += _measured_in_ram(case, {name: arm}, repeats)
        shutil.rmtree(directory / name)
    return rows


def _measured_in_ram(
    case: Case, made_by: Mapping[str, Callable[[], PipelineArm]], repeats: int
) -> list[Row]:  # fmt: skip
    with ExitStack() as stack:
        arms = {name: stack.enter_context(make()) for name, make in made_by.items()}
        for arm in arms.values():
            arm.run(SLOTS)
        before = {name: arm.written_bytes for name, arm in arms.items()}
        seconds = harness.interleave(
            {name: partial(seconds_a_step, arm, SLOTS) for name, arm in arms.items()}, repeats
        )
        steps = repeats * SLOTS
        written = {name: (arm.written_bytes - before[name]) / steps for name, arm in arms.items()}
        for arm in arms.values():
            arm.check()
        return [
            harness.row(
                f"{case.name} in RAM", name, found, nbytes=round(written[name]), dtype="float32",
                params=case.params, chunk_bytes=case.chunk_bytes, durability=case.durability,
                pages_in_flight=case.plan.updates_count,
                bytes_a_parameter=written[name] / case.params,
            )
            for name, found in seconds.items()
        ]  # fmt: skip


def seconds_a_step(arm: RawPages | PipelineArm, steps: int) -> float:
    """Run some steps; the mean of their seconds."""
    return harness.timed(lambda: arm.run(steps)) / steps


def main() -> int:
    """Run all cases."""
    parser = harness.flags("disk", __doc__ or "")
    parser.add_argument("--params", type=harness.parse_count, default=50_000_000, metavar="N")
    parser.add_argument("--chunks", metavar="A,B", help="64KiB,256KiB,1MiB,4MiB")
    parser.add_argument("--durability", choices=get_args(Durability), help="process and step")
    parser.add_argument("--in-flight", type=int, metavar="N", help="pages; else as planned")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="a measurement: 2")
    parser.add_argument("--in-ram", action="store_true", help="a state in RAM, with a log or not")
    parser.add_argument("--apart", action="store_true", help="its arms one after the other")
    parser.add_argument("--dir", metavar="DIR", help="where the files go; else TMPDIR")
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"disk: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    words = arguments.chunks or ("64KiB,256KiB" if smoke else "64KiB,256KiB,1MiB,4MiB")
    levels: list[Durability] = [arguments.durability] if arguments.durability else LEVELS
    rows: list[Row] = []
    for chunk_bytes in map(harness.size, harness.comma_list(words)):
        for durability in levels:
            case = Case(
                params=500_000 if smoke else arguments.params, chunk_bytes=chunk_bytes,
                durability=durability, updates_count=arguments.in_flight,
            )  # fmt: skip
            repeats = arguments.repeats or (1 if smoke else harness.REPEATS)
            with tempfile.TemporaryDirectory(prefix="luwu-disk-", dir=arguments.dir) as name:
                if arguments.in_ram:
                    rows += run_in_ram(case, Path(name), repeats=repeats, apart=arguments.apart)
                else:
                    rows += run_case(case, Path(name), steps=arguments.steps, repeats=repeats)
            say(_line(rows[-2:]))
    claims = {"of_raw": min(of_raw(pair) for pair in _pairs(rows))}
    if arguments.in_ram:
        claims = {
            "log_speedup": min(of_raw(pair) for pair in _pairs(rows)),
            "log_bytes": max(row["bytes_a_parameter"] for row in rows if row["arm"] == "log"),
        }
    _show(rows)
    result = harness.document("disk", rows, claims, claims_meaning=MEANINGS, smoke=smoke)
    harness.write(arguments.json, result)
    return 0


def of_raw(pair: Sequence[Row]) -> float:
    """The second arm's speed as a share of the first's; of medians."""
    raw, pipeline = pair
    ratio: float = raw["seconds_median"] / pipeline["seconds_median"]
    return ratio


def _pairs(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[index : index + 2] for index in range(0, len(rows), 2)]


def _line(pair: Sequence[Row]) -> str:
    return f"{pair[0]['case']}: {of_raw(pair):.2f} of {pair[0]['arm']}"


def _show(rows: Sequence[Row]) -> None:
    lines = []
    for pair in _pairs(rows):
        for each in pair:
            lines.append(
                (
                    each["case"], each["arm"], each["pages_in_flight"],
                    f"{each['seconds_median'] * 1e3:.0f}", f"{each['seconds_spread']:.0%}",
                    f"{each['bytes_per_s'] / 1e9:.2f}",
                    f"{of_raw(pair):.2f}" if each is pair[1] else "",
                )
            )  # fmt: skip
    harness.print_table(
        ("case", "arm", "in flight", "ms a step", "spread", "GB/s", "of first"), lines
    )


if __name__ == "__main__":
    raise SystemExit(main())
