"""Evidence that a change of structure changes nothing: `python -m tests.evidence COMMAND`.

    replay      give all records to today's cores; --quick: only those that CI replays
    rerun       simulate the recorded histories again, and compare what all cores were given and
                answered, payload bytes included; and the outlines of a thousand more
    digests     run a job every way, and compare the digests of its weights; --write: write them
    coverage    what the records cover: messages, actions, events, and lines of the cores
    record      write the records anew: of today's code, so only where a difference is meant
    headers     write the golden headers anew, for the same reason
    choose      choose seeds anew, from --seeds candidates; printed, not written

Exit code 1 if anything differs. Design note 0034 says what is recorded and what is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from tests.evidence import coverage, digests, headers, histories, states, suites
from tests.evidence.record import RECORDS, Head, Recorded, read, write
from tests.evidence.replayer import Replayed, replay_file

QUICK, MORE, SUITES = (RECORDS / f"{name}.rec.xz" for name in ("quick", "histories", "suites"))
OUTLINES = RECORDS / "outlines.txt"
OUTLINES_COUNT = 1000
_RECORDED = ("histories", "suites", "states", "outlines")
_PRODUCT = ("luwu", "switch_emu")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=sorted(_COMMANDS))
    parser.add_argument("--quick", action="store_true", help="replay: what CI replays")
    parser.add_argument("--write", action="store_true", help="digests: of today")
    parser.add_argument("--no-texts", action="store_true", help="texts for people may differ")
    parser.add_argument("--seeds", type=int, default=OUTLINES_COUNT, help="how many candidates")
    parser.add_argument(
        "--only", action="append", choices=_RECORDED,
        help="record: this alone; may be given again",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=None, help="default: one a CPU")
    options = parser.parse_args()
    start_ns = SYSTEM_CLOCK.now_ns()
    failures_count = _COMMANDS[options.command](options)
    print(f"{(SYSTEM_CLOCK.now_ns() - start_ns) / 1e9:.1f} s, {failures_count} differences")
    return 1 if failures_count else 0


def _replay(options: argparse.Namespace) -> int:
    replayed = Replayed()
    for path in (QUICK,) if options.quick else (QUICK, MORE, SUITES):
        head, _ = read(path)
        print(f"{path.name}: recorded at {head.commit} by `{head.command}`")
        replay_file(path, replayed, texts=not options.no_texts)
    print(
        f"{replayed.histories_count} histories, {replayed.lives_count} cores, "
        f"{replayed.events_count} events, {replayed.actions_count} actions"
    )
    for difference in replayed.differences[:10]:
        print(difference)
    return len(replayed.differences)


def _rerun(options: argparse.Namespace) -> int:
    found: list[str] = []
    for path in (QUICK, MORE):
        head, recorded = read(path)
        found += histories.differences(head, list(recorded))
    head, _ = read(QUICK)
    lines = OUTLINES.read_text().splitlines()
    expected = [line.split() for line in lines if not line.startswith("#")]
    with ProcessPoolExecutor(options.processes) as pool:
        seeds = [int(seed) for seed, _ in expected]
        outlines = pool.map(histories.outline, seeds, [head] * len(seeds), chunksize=8)
        for (seed, outline), new in zip(expected, outlines, strict=True):
            if outline != new:
                found.append(f"{histories.name_of(int(seed))}: outline {outline} is now {new}")
    print(f"{len(expected)} outlines")
    print("\n".join(found[:10]))
    return len(found)


def _record(options: argparse.Namespace) -> int:
    wanted = options.only or _RECORDED
    if "histories" in wanted:
        seeds, count = histories.listed(), histories.QUICK_COUNT
        _write(QUICK, *histories.record(seeds[:count]))
        _write(MORE, *histories.record(seeds[count:]))
    if "suites" in wanted:
        _write(SUITES, *suites.record())
    if "states" in wanted:
        states.write_all()
    if "outlines" in wanted:
        _write_outlines(options)
    return 0


def _write_outlines(options: argparse.Namespace) -> None:
    head, _ = read(QUICK)
    with ProcessPoolExecutor(options.processes) as pool:
        more = range(10_000, 10_000 + OUTLINES_COUNT)
        outlines = pool.map(histories.outline, more, [head] * len(more), chunksize=8)
        lines = [f"{seed} {outline}" for seed, outline in zip(more, outlines, strict=True)]
    OUTLINES.write_text("\n".join([f"# seed, outline; recorded at {_commit()}", *lines, ""]))


def _write(path: Path, head: Head, recorded: Sequence[Recorded]) -> None:
    head.commit, head.command = _commit(), "python -m tests.evidence record"
    write(path, head, recorded)
    print(f"{path.name}: {len(recorded)} histories, {path.stat().st_size} bytes")


def _commit() -> str:
    """Of the tree, for the reader of a record."""
    asked = ["git", "rev-parse", "--short=12", "HEAD"], ["git", "diff", "--stat", "HEAD", *_PRODUCT]
    commit, changes = (
        subprocess.run(each, capture_output=True, text=True, check=True).stdout.strip()
        for each in asked
    )
    return f"{commit} with changes" if changes else commit


def _coverage(options: argparse.Namespace) -> int:
    counts: Counter[coverage.Feature] = Counter()
    tracer, replayed = coverage.Tracer(), Replayed()
    for path in (QUICK, MORE, SUITES):
        _, recorded = read(path)
        for history in recorded:
            counts.update(coverage.features_of(history.lives))
        tracer.run(lambda path=path: replay_file(path, replayed))
    print(coverage.text(counts))
    print(coverage.lines_text(tracer.arcs))
    print(histories.faults_text())
    return len(replayed.differences)


def _headers(options: argparse.Namespace) -> int:
    headers.write_headers()
    return 0


def _digests(options: argparse.Namespace) -> int:
    if options.write:
        digests.write_table()
    found = digests.differences()
    print("\n".join(found))
    return len(found)


def _choose(options: argparse.Namespace) -> int:
    for seed, brings in histories.choose(0, options.seeds, 130):
        print(seed, brings)
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "replay": _replay, "rerun": _rerun, "record": _record, "coverage": _coverage,
    "headers": _headers, "digests": _digests, "choose": _choose,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
