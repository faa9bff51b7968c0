"""Workers of this host that are done, and workers that wait for one of them in vain.

A worker that ends leaves `roles/worker-r.ended`, which says whether it joined the job; one that
leaves the job has `worker.leaves` among its events, with the step that would have been its next.

    none joined              the script has no luwu.init(): N copies train side by side
    one sent no goodbye      it ended by os._exit(0): it is lost, as one that was killed
    a thread stays behind    the script is done, and its process is not
    one did not join         the others wait until it does
    one made fewer steps     the others wait for its part of the next one
    some elsewhere are late  their switch has named them to the workers (`worker.misses`)

Each is reported once, as soon as it can be seen, and not when `--grace` is over. Of a worker that
was started again only what it did since counts; one that failed is no case of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, Clock
from luwu.base.errors import ConfigError, DeadlineError, WorkerFailed
from luwu.base.foreign import open_lines
from luwu.base.json_file import json_object, read_json
from luwu.launch.processes.children import end_text, is_alive
from luwu.launch.processes.run_directory import RUNNING, RunDirectory

LEAVES: Final = "worker.leaves"
MISSES: Final = "worker.misses"
BROKEN_OFF: Final = "broken_off"
"""The key of `roles/worker-r.ended` for `_Worker.has_broken_off`."""
_LOOK_NS: Final = 500_000_000
_TAIL_BYTES: Final = 16 * 1024
_ADVICE: Final = (
    "let every rank make the same number of steps; one without samples calls luwu.empty_backward()"
)


@dataclass(slots=True)
class _Worker:
    rank: int
    has_ended: bool
    has_joined: bool
    """As it reported at its end."""
    has_broken_off: bool
    """It exited with code 0 in the middle of its script, before luwu.init(), as its agent saw."""
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
    is_running: bool
    """Its script has neither ended nor failed, as far as it could say."""
    pid: int
    threads: list[str]
    """Threads of the script that still ran when it had ended."""

    @property
    def is_gone(self) -> bool:
        """If its process has ended: in the middle of its script, and it had not left the job."""
        return self.is_running and self.has_begun and self.left_at is None

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
        self, run: RunDirectory, prefix: str = "", *, clock: Clock = SYSTEM_CLOCK
    ) -> None:  # fmt: skip
        self._run, self._prefix, self._clock = run, prefix, clock
        self._next_ns = 0
        self._said: set[str] = set()
        self._staying: list[int] = []
        """Ranks with a process although their script is done, at the last look."""
        self._has_left = False

    def news(self) -> list[str]:
        """Reports that are new since the last call. Raises WorkerFailed."""
        now_ns = self._clock.now_ns()
        if now_ns < self._next_ns:
            return []
        self._next_ns = now_ns + _LOOK_NS
        workers = self._look()
        self._check_broken_off(workers)
        found = [*self._find(workers), *self._missing(workers), *self._stay(workers)]
        news = [text for kind, text in found if kind not in self._said]
        self._said.update(kind for kind, _ in found)
        return news

    def vain_waits(self) -> list[str]:
        """Ranks that are gone, and others that waited for them, as known now."""
        return [text for _, text in self._find(self._look())]

    def have_left(self, *, is_new: bool) -> bool:
        """True if all workers had left the job at the last look, or at a new one."""
        if is_new:
            self._look()
        return self._has_left

    def check_joined(self) -> None:
        """All workers have ended well. Raises ConfigError if none was a member of the job."""
        workers = self._look()
        if workers and all(each.is_stranger for each in workers):
            raise ConfigError(_nobody(workers))

    def _find(self, workers: list[_Worker]) -> list[tuple[str, str]]:
        return [*self._strangers(workers), *self._early(workers)]

    def _missing(self, workers: list[_Worker]) -> Iterator[tuple[str, str]]:
        text = next((each.misses for each in workers if each.misses), "")
        if text:
            yield text, f"{text} yet; the workers of this host wait for them"

    def _check_broken_off(self, workers: list[_Worker]) -> None:
        """Raises WorkerFailed for one that others, which have begun the job, wait for."""
        has_begun = any(each.has_begun for each in workers)
        for worker in workers:
            if has_begun and worker.has_broken_off:
                raise WorkerFailed(
                    f"worker {worker.rank} (pid {worker.pid}) was lost: {end_text(0)}. Log "
                    f"{self._run.log(f'{self._prefix}worker-{worker.rank}')}",
                    code="E401",
                )

    def _stay(self, workers: list[_Worker]) -> Iterator[tuple[str, str]]:
        """Workers whose process stays, in two looks, although their script is done."""
        staying = {each.rank: each for each in workers if each.threads and is_alive(each.pid)}
        before, self._staying = self._staying, list(staying)
        for rank in (each for each in before if each in staying):
            text = (
                f"the script of worker {rank} is done and its last step is decided, but its thread "
                f"{', '.join(staying[rank].threads)} still runs, and the run waits for it: end it, "
                "or make it a daemon thread"
            )
            yield f"stays {rank}", text

    def _strangers(self, workers: list[_Worker]) -> Iterator[tuple[str, str]]:
        ended = [each for each in workers if each.is_stranger]
        if not ended or not any(each.is_waiting for each in workers):
            return
        if not any(each.has_begun for each in workers):
            yield "nobody", _nobody(ended)
            return
        for rank in (each.rank for each in ended):
            text = (
                f"the script of worker {rank} has ended without joining the job, so the others "
                "wait for it: every rank must call luwu.init() and make an optimizer of "
                f"luwu.optim; its output is in {self._run.log(f'{self._prefix}worker-{rank}')}"
            )
            yield f"stranger {rank}", text

    def _early(self, workers: list[_Worker]) -> Iterator[tuple[str, str]]:
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
                text = (
                    f"worker {gone.rank} has left the job {made} (its script has ended, or called "
                    f"luwu.finish()), and worker {', '.join(waiting)} waits for its part of step "
                    f"{gone.left_at}; {_ADVICE}"
                )
                yield f"early {gone.rank} {gone.left_at}", text

    def _look(self) -> list[_Worker]:
        files = sorted(self._run.path.glob(f"roles/{self._prefix}worker-*.json"))
        found = [worker for file in files if (worker := look_at(self._run, file)) is not None]
        self._has_left = bool(found) and all(each.left_at is not None for each in found)
        return found


def look_at(run: RunDirectory, file: Path) -> _Worker | None:
    """The worker whose process is recorded in `roles/worker-r.json`; None if none is."""
    record = read_json(file)
    if record is None:
        return None
    ended = read_json(file.with_suffix(".ended")) or {}
    start = read_json(file.with_suffix(".start"))
    error = read_json(run.error(file.stem))
    events = run.events(f"worker-{record['rank']}")
    left_at, last_step, misses = _seen(events, 0 if start is None else start["at_ns"])
    return _Worker(
        rank=record["rank"], has_ended=bool(ended), has_begun=events.exists(),
        has_broken_off=ended.get(BROKEN_OFF, False),
        has_joined=ended.get("joined", False), left_at=left_at, last_step=last_step,
        misses=misses, failed_with=None if error is None else error["type"],
        is_running=file.with_suffix(RUNNING).exists(), pid=record["pid"],
        threads=ended.get("threads", []) if left_at is not None else [],
    )  # fmt: skip


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
        with open_lines(events) as file:
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
