"""Starts the workers of one host, and starts them again.

    python -m luwu.launch.agent '{"share": [[0, 1], 4], ...}' SCRIPT ...      `own_agent_command`

In torchrun's place, which ends all workers, on all hosts, when one is lost. Torch is imported here,
once, and workers are forked; `torch_import.py` says when they start by themselves instead. They
begin when a file is there: torch is imported while switch and node start, which take as long. The
ranks of this host may be some of the job's (`Share`). Each worker gets the variables of the
environment that torchrun gives (RANK, WORLD_SIZE, ...). Those by which processes of
torch.distributed meet are there where all are on this host and a lost one ends the others: a
process group cannot outlive one of its processes. A worker that ends well is done, and so is one
that is killed after it has left the job. Any other end is a loss, also that with code 0 in the
middle of the script:

    stop    all of this host are stopped, and started again while restarts are left
    wait    it is started again while restarts are left, and then all are stopped
    drop    it is started again while restarts are left, and then left out; all are stopped when no
            worker is left

An error that starting again would not mend (exit codes 2, 3, 5) ends a `stop` and a `wait` at once.
What happens is one line each of our output, which the launcher shows.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from luwu.base import loopback
from luwu.base.clock import sleep
from luwu.base.errors import WorkerFailed
from luwu.base.expendable import print_if_possible
from luwu.base.torch_import import ImportedTorch, import_for_children
from luwu.launch import entry
from luwu.launch.attendance import BROKEN_OFF, look_at
from luwu.launch.processes.children import Forked, end_text, exit_text, stop_all
from luwu.launch.processes.failures import FINAL_CODES
from luwu.launch.processes.run_directory import RunDirectory


def run_entry(torch: ImportedTorch | None, arguments: Sequence[str]) -> None:
    """In a child: run the entry, or begin as a program of its own that does.

    A forked worker begins in milliseconds, and its own import of torch finds what it would have
    found, or it begins as a program of its own (`torch_import.py`).
    """
    start_program = functools.partial(_start_program, arguments)
    if torch is None:
        start_program()
    else:
        offer = functools.partial(torch.offer, otherwise=start_program)
        entry.main(arguments, before_script=offer)


def _start_program(arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", entry.__name__, *arguments])


SAYS: Final = "agent: "
"""Begins a line of ours."""
_POLL_S = 0.02
_STOP_PATIENCE_S = 0.5
_LOST_CODE = 4


class Share(NamedTuple):
    """The workers of a job that one host starts."""

    ranks: tuple[int, ...]
    world_size: int
    """Workers of the job, on all hosts."""

    @classmethod
    def of_all(cls, workers: int) -> Share:
        """All workers of a job, on one host."""
        return cls(tuple(range(workers)), workers)

    @property
    def is_all(self) -> bool:
        """True if no other host has workers."""
        return len(self.ranks) == self.world_size


@dataclass(slots=True, eq=False)
class _Worker:
    rank: int
    process: Forked
    is_done: bool = False
    is_lost: bool = False


class Agent:
    """See the module."""

    def __init__(
        self, script: Sequence[str], *, share: Share, policy: str, restarts: int,
        run: RunDirectory, prefix: str, when: Path | None,
    ) -> None:  # fmt: skip
        self._torch = import_for_children()
        if self._torch is not None:
            importlib.import_module("luwu.join.open")  # looks neither at torch nor at a script
        while when is not None and not when.exists():
            sleep(_POLL_S)
        self._arguments, self._share = [str(run.path), prefix, *script], share
        self._policy, self._restarts_left = policy, restarts
        self._run, self._prefix = run, prefix
        self._restarts_count, self._restarts_max = 0, restarts
        self._start_all()

    def run(self) -> int:
        """Until all workers are done, lost for good or stopped; the exit code."""
        while True:
            for worker in list(self._workers):
                if not worker.is_done and not worker.is_lost:
                    code = self._look(worker)
                    if code:
                        self._stop_all()
                        return code
                    if worker not in self._workers:
                        break  # all were started again
            if all(worker.is_done or worker.is_lost for worker in self._workers):
                return 0
            sleep(_POLL_S)

    def _look(self, worker: _Worker) -> int:
        """Look whether it has ended; the exit code of all, if that ends all."""
        code = worker.process.poll()
        if code is None:
            return 0
        role = self._run.role(f"{self._prefix}worker-{worker.rank}.json")
        seen = look_at(self._run, role)
        has_left = seen is not None and seen.left_at is not None
        if has_left and code < 0:
            self._say(
                f"worker {worker.rank} (pid {worker.process.pid}) ended with {exit_text(code)} "
                "after it had left the job: no step is missing, but its script may not be done"
            )
        if (has_left and code < 0) or (code == 0 and not (seen is not None and seen.is_gone)):
            worker.is_done = True
            if seen is not None and seen.is_running and not seen.has_begun:
                self._run.keep(role.with_suffix(".ended"), {"joined": False, BROKEN_OFF: True})
            return 0
        how = f"worker {worker.rank} (pid {worker.process.pid}) was lost: {end_text(code)}"
        may_mend = code not in FINAL_CODES
        if may_mend and self._restarts_left:
            self._start_again(worker, how)
            return 0
        others = [w for w in self._workers if w is not worker and not w.is_lost]
        if self._policy == "drop" and others:
            worker.is_lost = True
            self._say(f"{how}; the others go on without it")
            return 0
        if may_mend:
            self._explain(worker, f"{how}; no restarts are left (--worker-restarts)")
        return code if code > 0 else _LOST_CODE

    def _start_again(self, worker: _Worker, how: str) -> None:
        """Start a lost worker again; where it ends the others, all of this host."""
        self._restarts_left -= 1
        left = f"{self._restarts_left} restarts left"
        if self._policy == "stop":
            self._stop_all()
            self._restarts_count += 1
            self._say(f"{how}; all workers of this host are started again, {left}")
            self._start_all()
        else:
            worker.process = self._start(worker.rank)
            self._say(f"{how}; started again as pid {worker.process.pid}, {left}")

    def _explain(self, worker: _Worker, text: str) -> None:
        """Say why all ended, in the place of a worker that could not."""
        process = f"{self._prefix}worker-{worker.rank}"
        if self._run.error(process).exists():
            return
        if not self._share.is_all:
            text += "; start this command again, and its ranks take part again"
        error = WorkerFailed(text, code="E401")
        entry.write_error(self._run, process, worker.rank, error, exit_code=_LOST_CODE)

    def _start_all(self) -> None:
        self._meeting = self._meet()
        self._workers = [_Worker(rank, self._start(rank)) for rank in self._share.ranks]

    def _start(self, rank: int) -> Forked:
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(self._share.ranks.index(rank)),
            "WORLD_SIZE": str(self._share.world_size),
            "LOCAL_WORLD_SIZE": str(len(self._share.ranks)),
        }
        if self._meeting:
            environ |= self._meeting_environ(rank)
        return Forked(functools.partial(run_entry, self._torch, self._arguments), environ)

    def _meeting_environ(self, rank: int) -> dict[str, str]:
        """Variables that torchrun sets beside the ranks, by which processes of torch.distributed
        find each other."""
        return {
            **self._meeting,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(self._share.world_size),
            "TORCHELASTIC_MAX_RESTARTS": str(self._restarts_max),
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts_count),
            "TORCHELASTIC_RUN_ID": self._run.path.name,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
            ),
        }

    def _meet(self) -> dict[str, str]:
        """Where processes of torch.distributed meet; nowhere where a group would outlive one, or
        have some elsewhere."""
        if self._policy != "stop" or not self._share.is_all:
            return {}
        try:
            with loopback.listen() as listening:
                host, port = listening.getsockname()[:2]
        except OSError as exc:
            self._say(
                f"this machine has neither 127.0.0.1 nor ::1 ({exc.strerror}): torch.distributed "
                "can make no process group here, which luwu does not need"
            )
            return {}
        return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}

    def _stop_all(self) -> None:
        stop_all([worker.process for worker in self._workers], patience_s=_STOP_PATIENCE_S)

    @staticmethod
    def _say(text: str) -> None:
        print_if_possible(f"{SAYS}{text}", sys.stdout)


def own_agent_command(
    run: RunDirectory, prefix: str, share: Share, *, policy: str, restarts: int,
    when: Path | None = None,
) -> list[str]:  # fmt: skip
    """The command line of an agent, without the script. `when`: a file that workers wait for."""
    asked = {
        "share": share, "policy": policy, "restarts": restarts, "run": str(run.path),
        "prefix": prefix, "when": None if when is None else str(when),
    }  # fmt: skip
    return [sys.executable, "-m", "luwu.launch.agent", json.dumps(asked)]


def main(arguments: Sequence[str]) -> int:
    """Start and watch; the exit code."""
    asked, *script = arguments
    given = json.loads(asked)
    (ranks, world_size), when = given.pop("share"), given.pop("when")
    agent = Agent(
        script, share=Share(tuple(ranks), world_size), run=RunDirectory(Path(given.pop("run"))),
        when=None if when is None else Path(when), **given,
    )  # fmt: skip
    return agent.run()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # its output is not buffered; the end of torch takes 0.2 s
