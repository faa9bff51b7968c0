"""Workers of this host that are done, and workers that wait for one of them in vain.

A worker that ends leaves `roles/worker-r.ended`, which says whether it joined the job; one that
leaves the job has `worker.leaves` among its events, with the step that would have been its next.

    none joined              the script has no luwu.init(): N copies train side by side
    one did not join         the others wait until it does
    one made fewer steps     the others wait for its part of the next one
    some elsewhere are late  their switch has told the workers here which (`worker.misses`)
    a host is missing        the torchruns of the others start no worker

Each is said once, as soon as it can be seen, and not when `--grace` is over. Of a worker that was
started again only what it did since counts; one that failed is no case of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, Clock
from luwu.base.errors import ConfigError, DeadlineError
from luwu.base.json_file import json_object, read_json
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.torchrun import Meeting

LEAVES: Final = "worker.leaves"
MISSES: Final = "worker.misses"
_LOOK_NS: Final = 500_000_000
_ALONE_NS: Final = 10 * 10**9
"""Time for torchruns of several hosts to meet, before a report of who waits for whom."""
_TAIL_BYTES: Final = 16 * 1024
_ADVICE: Final = (
    "let every rank make the same number of steps; one without samples calls luwu.empty_backward()"
)


@dataclass(slots=True)
class _Worker:
    rank: int
    has_ended: bool
    has_joined: bool
    """As it said at its end."""
    has_begun: bool
    """luwu.init() was called."""
    left_at: int | None
    """The step that would have been its next."""
    last_step: int
    """The last step that it computed a gradient of; -1: none."""
    misses: str
    """The ranks that had not joined, as of the last report."""
    failed_with: str | None
    """The kind of error that ended it."""

    @property
    def is_waiting(self) -> bool:
        """It is a member, or will be one, and needs the others; or was until a wait of it came to
        its end."""
        has_given_up = self.failed_with == DeadlineError.__name__
        return self.left_at is None and (has_given_up or not self.has_ended)

    @property
    def is_stranger(self) -> bool:
        """Its script is done, and was never a member."""
        return self.has_ended and not self.has_joined and self.failed_with is None


class Attendance:
    """Looks at the workers of a job on this host, twice a second."""

    def __init__(
        self, run: RunDirectory, prefix: str = "", *, meeting: Meeting | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        """`meeting`: where this host's torchrun meets those of others."""
        self._run, self._prefix = run, prefix
        self._meeting, self._clock = meeting, clock
        self._alone_ns = clock.now_ns() + _ALONE_NS
        self._next_ns = 0
        self._said: set[str] = set()

    def news(self) -> list[str]:
        """Reports that are new since the last call."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + _LOOK_NS
        workers = self._look()
        found = [*self._find(workers), *self._missing(workers)]
        if not workers and self._meeting is not None and now_ns > self._alone_ns:
            found = [("alone", _alone(self._meeting))]
        news = [text for kind, text in found if kind not in self._said]
        self._said.update(kind for kind, _ in found)
        return news

    def vain_waits(self) -> list[str]:
        """Ranks that are gone, and others that waited for them, as known now."""
        return [text for _, text in self._find(self._look())]

    def check_joined(self) -> None:
        """All workers have ended well. Raises ConfigError if none was a member of the job."""
        workers = self._look()
        if workers and all(each.is_stranger for each in workers):
            raise ConfigError(_nobody(workers))

    def _find(self, workers: list[_Worker]) -> list[tuple[str, str]]:
        return [*self._strangers(workers), *self._early(workers)]

    def _missing(self, workers: list[_Worker]) -> list[tuple[str, str]]:
        found = [each.misses for each in workers if each.misses]
        return [(text, f"{text} yet; the workers of this host wait for them") for text in found[:1]]

    def _strangers(self, workers: list[_Worker]) -> list[tuple[str, str]]:
        ended = [each for each in workers if each.is_stranger]
        if not ended or not any(each.is_waiting for each in workers):
            return []
        if not any(each.has_begun for each in workers):
            return [("nobody", _nobody(ended))]
        return [(f"stranger {each.rank}", self._stranger(each.rank)) for each in ended]

    def _stranger(self, rank: int) -> str:
        return (
            f"the script of worker {rank} has ended without joining the job, so the others wait "
            "for it: every rank must call luwu.init() and make an optimizer of luwu.optim; its "
            f"output is in {self._run.log(f'{self._prefix}worker-{rank}')}"
        )

    def _early(self, workers: list[_Worker]) -> list[tuple[str, str]]:
        found = []
        for gone in workers:
            if gone.left_at is None:
                continue
            waiting = [
                str(each.rank)
                for each in workers
                if each.is_waiting and each.last_step >= gone.left_at
            ]
            if waiting:
                made = "without a step" if not gone.left_at else f"after step {gone.left_at - 1}"
                found.append((
                    f"early {gone.rank} {gone.left_at}",
                    f"worker {gone.rank} has left the job {made} (its script has ended, or called "
                    f"luwu.finish()), and worker {', '.join(waiting)} waits for its part of step "
                    f"{gone.left_at}; {_ADVICE}",
                ))  # fmt: skip
        return found

    def _look(self) -> list[_Worker]:
        found = []
        for file in sorted(self._run.path.glob(f"roles/{self._prefix}worker-*.json")):
            record = read_json(file)
            if record is None:
                continue
            process = f"{self._prefix}worker-{record['rank']}"
            ended = read_json(file.with_suffix(".ended"))
            start = read_json(file.with_suffix(".start"))
            error = read_json(self._run.error(process))
            events = self._run.events(f"worker-{record['rank']}")
            left_at, last_step, misses = _seen(events, 0 if start is None else start["at_ns"])
            found.append(_Worker(
                rank=record["rank"], has_ended=ended is not None, has_begun=events.exists(),
                has_joined=bool(ended and ended["joined"]), left_at=left_at, last_step=last_step,
                misses=misses, failed_with=None if error is None else error["type"],
            ))  # fmt: skip
        return found


def _alone(meeting: Meeting) -> str:
    return (
        f"no worker of this host has started: its torchrun waits at {meeting.endpoint} for those "
        f"of {meeting.hosts} hosts; start the same command on each of them"
    )


def _nobody(workers: list[_Worker]) -> str:
    ranks = ", ".join(str(each.rank) for each in workers)
    return (
        f"the script of worker {ranks} has ended, and no worker has joined the job: each trained a "
        "copy of its own, and nothing was kept. Call luwu.init(), luwu.fully_shard(model) and make "
        "an optimizer of luwu.optim in the script (docs/training.md); a script without luwu is "
        "started by torchrun"
    )


def _seen(events: Path, since_ns: int) -> tuple[int | None, int, str]:
    """From the end of a worker's events, since it was started last: the step it left at, the last
    that it had a gradient of, and which ranks it missed."""
    try:
        with events.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None, -1, ""
    left_at, last_step, misses = None, -1, ""
    for line in lines:
        record = json_object(line)
        name, at_ns = record.get("name"), record.get("at_ns", record.get("start_ns", -1))
        if at_ns < since_ns:
            continue
        if name == LEAVES:
            left_at = record["step"]
        elif name == MISSES:
            misses = record["text"]
        elif name == "flatten":
            last_step = max(last_step, record["step"])
    return left_at, last_step, misses
