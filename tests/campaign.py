"""All campaigns, in shares: `python -m tests.campaign`, or `make campaign`.

    python -m tests.campaign                      go on with what is not done yet
    python -m tests.campaign --only "kill"        only campaigns with that in their name
    python -m tests.campaign --part 0.01          a hundredth of each
    python -m tests.campaign --list               what there is, and what is done

A campaign is one of the programs that look for violations (`tests.simulate`, `tests.kill`, ...),
with seeds and counts; a *share* is one run of it. A share that was done without a violation is
written down in DIRECTORY/progress.jsonl, with the digest of the program it was done on, and not
done again on the same program; so a campaign that was stopped goes on, and one after a change
begins again. What a share with violations printed is in DIRECTORY too.

The last line of each campaign is `NAME: N trials, V violations`, and of all of them
`N trials, V violations`; exit code 0, or 1 with a violation or a share that did not end well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep

ROOT: Final = Path(__file__).resolve().parents[1]
PROGRAM: Final = ("luwu", "switch_emu", "workers")
"""Directories that a result is a statement about."""
FILES: Final = ("constraints.txt", "pyproject.toml")
"""And what it was run with."""
MODEL: Final = ("luwu/predict",)
"""The performance model: one campaign is about it alone, and no other comes near it."""
VERDICT: Final = re.compile(r"(\d+) trials, (\d+) violations")
POLL_S: Final = 0.2


@dataclass(frozen=True)
class Campaign:
    """A program to run `shares` times, `each` trials a time."""

    name: str
    module: str
    shares: int
    each: int
    """Trials of a share; of a few programs, what they take for a count."""
    words: str
    """Arguments of a share, with {each}, {first} and {share} to be filled in."""
    program: tuple[str, ...] = PROGRAM
    """What its result is a statement about."""

    def arguments(self, share: int, each: int) -> list[str]:
        """Of one share."""
        filled = self.words.format(
            each=each, first=share * self.each, share=share, shares=self.shares
        )
        return [self.module, *filled.split()]


CAMPAIGNS: Final = (
    Campaign("soak", "tests.soak", 1, 30, "--minutes {each}"),
    Campaign(
        "histories", "tests.simulate", 40, 500,
        "--seeds {each} --first {first} --processes 1",
    ),
    Campaign(
        "histories without a switch", "tests.simulate", 10, 500,
        "--seeds {each} --first {first} --processes 1 --no-switch",
    ),
    Campaign(
        "histories with a lost node", "tests.simulate", 10, 500,
        "--seeds {each} --first {share}000000 --processes 1 --with LoseNode",
    ),
    Campaign(
        "crash images", "tests.crash_images", 20, 5000,
        "--count {each} --seed {first} --processes 1",
    ),
    Campaign("kill node", "tests.kill", 12, 25, "--role node --count {each} --seed {share}"),
    Campaign("lost node", "tests.kill", 8, 25, "--role lost-node --count {each} --seed {share}"),
    Campaign("kill worker", "tests.kill", 4, 25, "--role worker --count {each} --seed {share}"),
    Campaign("kill switch", "tests.kill", 4, 25, "--role switch --count {each} --seed {share}"),
    Campaign("last second", "tests.kill", 8, 25, "--role last --count {each} --seed {first}"),
    Campaign("system calls", "tests.syscalls", 20, 1, "--stride {shares} --first {share}"),
    Campaign("fuzzed headers", "tests.fuzz", 20, 500_000, "--headers {each} --first {first}"),
    Campaign("fuzzed messages", "tests.fuzz", 10, 10_000, "--live {each} --first {first}"),
    Campaign("fuzzed files", "tests.fuzz", 10, 10_000, "--files {each} --first {first}"),
    Campaign("intruders", "tests.intruders", 10, 100, "--count {each} --seed {share}"),
    Campaign(
        "floods", "tests.intruders.floods", 4, 90_000, "--count {each} --seed {share}",
    ),
    Campaign("flipped bits", "tests.flips", 6, 50, "--count {each} --seed {first}"),
    Campaign("versions", "tests.marked", 1, 1, "index"),
    Campaign("predictions", "tests.predictions", 20, 5000, "--count {each} --seed {share}", MODEL),
)  # fmt: skip
UNDIVIDED: Final = {"system calls"}
"""A share of them is made smaller by fewer shares alone."""


@dataclass(frozen=True)
class Share:
    """One run of a campaign's program."""

    campaign: Campaign
    number: int
    arguments: tuple[str, ...]

    @property
    def key(self) -> str:
        """What it is known by in the progress."""
        return " ".join(self.arguments)


@dataclass(frozen=True)
class Result:
    """What a share came to."""

    trials: int
    violations: int


def shares_of(campaign: Campaign, part: float) -> list[Share]:
    """The shares of a part of a campaign: fewer of them; below one, a smaller one."""
    count = max(1, round(campaign.shares * part))
    each = campaign.each
    if campaign.name not in UNDIVIDED:
        each = max(1, min(each, round(campaign.shares * campaign.each * part)))
    return [
        Share(campaign, number, tuple(campaign.arguments(number, each))) for number in range(count)
    ]


def program_digest(root: Path, program: tuple[str, ...]) -> str:
    """Of the source of a program, by content alone."""
    digest, model = hashlib.sha256(), root / MODEL[0]
    for place in (*program, *FILES):
        for path in sorted({root / place, *(root / place).rglob("*")}):
            name = path.relative_to(root).as_posix()
            left_out = program != MODEL and model in path.parents
            if path.is_file() and "__pycache__" not in path.parts and not left_out:
                data = path.read_bytes()
                digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:16]


class Progress:
    """Shares that were done well, on disk as they come."""

    def __init__(self, directory: Path, digests: Mapping[tuple[str, ...], str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path, self._digests = directory / "progress.jsonl", digests
        self._done: dict[tuple[str, str], Result] = {}
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        for line in lines:
            found = json.loads(line)
            self._done[found["program"], found["share"]] = Result(found["trials"], 0)

    def result(self, share: Share) -> Result | None:
        """None if it is still to be done."""
        return self._done.get((self._digests[share.campaign.program], share.key))

    def keep(self, share: Share, result: Result, seconds: float) -> None:
        """It was done, and nothing was violated."""
        self._done[share.key] = result
        line = {
            "share": share.key, "trials": result.trials, "seconds": round(seconds, 1),
            "program": self._digests[share.campaign.program],
        }  # fmt: skip
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Running:
    """A share at work."""

    def __init__(self, share: Share, directory: Path) -> None:
        self.share = share
        self.log = directory / f"{share.campaign.name.replace(' ', '-')}-{share.number}.log"
        self._started_ns = SYSTEM_CLOCK.now_ns()
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *share.arguments], cwd=ROOT, stdout=file,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def result(self) -> Result:
        """Of one that has ended; a violation more if it did not end as it says."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = VERDICT.fullmatch(lines[-1]) if lines else None
        if found is None:
            return Result(0, 1)
        trials, violations = int(found[1]), int(found[2])
        if (self.process.returncode != 0) != (violations > 0):
            violations += 1
        return Result(trials, violations)

    def seconds(self) -> float:
        """Since it was started."""
        return (SYSTEM_CLOCK.now_ns() - self._started_ns) / 1e9


def run(
    shares: Sequence[Share], progress: Progress, directory: Path, jobs: int
) -> dict[Share, Result]:
    """Do what is not done, `jobs` at a time; the results of all."""
    results = {share: result for share in shares if (result := progress.result(share)) is not None}
    waiting = deque(share for share in shares if share not in results)
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Running(waiting.popleft(), directory))
            for each in [one for one in running if one.process.poll() is not None]:
                running.remove(each)
                results[each.share] = _ended(each, progress)
            sleep(POLL_S)
    finally:
        for each in running:
            each.process.send_signal(signal.SIGINT)  # as from a terminal: it cleans up
        for each in running:
            each.process.wait()
    return results


def _ended(each: Running, progress: Progress) -> Result:
    result, seconds, share = each.result(), each.seconds(), each.share
    print(
        f"{share.campaign.name} {share.number + 1}: {result.trials} trials, {result.violations} "
        f"violations, {seconds:.0f} s: python -m {share.key}",
        flush=True,
    )
    if result.violations:
        print(f"    what it said: {each.log}", flush=True)
    else:
        progress.keep(share, result, seconds)
        each.log.unlink()
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Go on with the campaigns; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, default=Path("luwu-campaign"))
    parser.add_argument("--only", default="", help="campaigns with this in their name")
    parser.add_argument("--part", type=float, default=1.0, help="of each campaign (1.0)")
    parser.add_argument("--jobs", type=int, default=2, help="shares at a time (2)")
    parser.add_argument("--list", action="store_true", help="run nothing")
    asked = parser.parse_args(arguments)
    chosen = [campaign for campaign in CAMPAIGNS if asked.only in campaign.name]
    if not chosen or not 0 < asked.part <= 1 or asked.jobs < 1:
        names = ", ".join(campaign.name for campaign in CAMPAIGNS)
        parser.error(f"--part is above 0 and at most 1, --jobs at least 1, --only one of {names}")
    digests = {program: program_digest(ROOT, program) for program in (PROGRAM, MODEL)}
    progress = Progress(asked.directory, digests)
    queues = [shares_of(campaign, asked.part) for campaign in chosen]
    if asked.list:
        for campaign, queue in zip(chosen, queues, strict=True):
            done_count = sum(progress.result(share) is not None for share in queue)
            print(f"{campaign.name}: {done_count} of {len(queue)} shares done")
        return 0
    # Also where it was started with signals ignored, as shells start what runs in the background:
    # the handler is not inherited, so each program has its own, which cleans up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(
        f"program {digests[PROGRAM]}, model {digests[MODEL]}, progress in {asked.directory}",
        flush=True,
    )
    # One of each campaign after the other, so that each gets on.
    shares = [share for turn in zip_longest(*queues) for share in turn if share is not None]
    results = run(shares, progress, asked.directory, asked.jobs)
    for campaign, queue in zip(chosen, queues, strict=True):
        print(f"{campaign.name}: {total(results[share] for share in queue)}")
    print(total(results.values()))
    return 1 if any(result.violations for result in results.values()) else 0


def total(results: Iterable[Result]) -> str:
    """In words."""
    all_of_it = list(results)
    trials = sum(result.trials for result in all_of_it)
    return f"{trials} trials, {sum(result.violations for result in all_of_it)} violations"


if __name__ == "__main__":
    sys.exit(main())
