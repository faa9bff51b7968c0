"""Serve job after job in one process: `python -m switch_emu switch|node --jobs`.

A line on standard input says what to do, as JSON; the file is that of `--config`.

    {"do": "open", "config": "/.../roles/node.json"}     serve this job, in a thread of its own
    {"do": "drop", "config": "/.../roles/node.json"}     stop serving it

A job answers by its files, as a process for one job does, and by one more: `ended` holds the exit
code that such a process would have had. The end of standard input is the end of all (design note
0014: a test must not pay for the start of a process with torch).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import STOP_SIGNALS
from luwu.base.json_file import write_json
from luwu.base.lifeline import watch
from switch_emu.roles.role import attend, read_document
from switch_emu.switch.capacity import SharedSlots

PATIENCE_S = 1.8
"""How long the jobs may take to stop at the end; a loop looks every 0.2 s."""


@dataclass(slots=True)
class _Job:
    document: dict[str, Any]
    thread: threading.Thread
    stopping: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The jobs of one process. Lines are read in one thread, each job runs in another.

    They share `slot_count` slots: one of protocol fidelity has some of them while it is open.
    """

    def __init__(self, role: str, slot_count: int) -> None:
        self._role = role
        self._slots = SharedSlots(slot_count)
        self._jobs: dict[str, _Job] = {}
        self._read_fd, self._write_fd = os.pipe()
        """A pipe on which the main thread waits for the end: any thread writes to it to wake it."""
        os.set_blocking(self._write_fd, False)
        self._orphaned = False

    def serve(self) -> int:
        """Do what standard input says until it ends, or a signal comes; the exit code."""
        # Not a lock: Python runs the handler of a signal in the main thread, and one that waits for
        # a lock is not always woken for it. (Of 100 processes on busy cores 6 slept on.)
        signal.set_wakeup_fd(self._write_fd)
        for number in STOP_SIGNALS:
            signal.signal(number, lambda *_: None)
        load(self._role)
        watch(self._end_of_input, on_line=self.do)
        os.read(self._read_fd, 1)
        return self._end()

    def do(self, line: str) -> None:
        """Open or drop a job."""
        order = json.loads(line)
        name = order["config"]
        if order["do"] == "drop":
            job = self._jobs.get(name)
            if job is not None:  # else it has just ended
                job.stopping.set()
            return
        document = read_document(Path(name))
        thread = threading.Thread(target=self._run, args=(name,), name=f"job {name}", daemon=True)
        self._jobs[name] = _Job(document, thread)
        thread.start()

    def _run(self, name: str) -> None:
        job = self._jobs[name]
        code = 1
        try:
            code = attend(self._role, job.document, job.stopping, self._slots)
        finally:
            del self._jobs[name]
            write_json(Path(job.document["ended"]), {"schema": 1, "exit_code": code})

    def _end_of_input(self) -> None:
        self._orphaned = True
        os.write(self._write_fd, b".")

    def _end(self) -> int:
        left = list(self._jobs.values())
        for job in left:
            job.stopping.set()
        end_ns = SYSTEM_CLOCK.now_ns() + int(PATIENCE_S * 1e9)
        for job in left:
            job.thread.join(timeout=max(0.0, (end_ns - SYSTEM_CLOCK.now_ns()) / 1e9))
        if self._orphaned:  # nobody else removes the sockets
            for job in left:
                if job.document["private_directory"] is not None:
                    shutil.rmtree(job.document["private_directory"], ignore_errors=True)
        if any(job.thread.is_alive() for job in left):
            os._exit(1)
        return 0


def load(role: str) -> None:
    """Import what a job needs before there is one."""
    if role == "switch":
        import switch_emu.switch.process
    else:
        import switch_emu.node.process  # noqa: F401
