"""One trial a call and fault: the node meets it, is started again without, and training ends.

    create   a new state is made: the main thread's calls until all workers have joined
    work     first weights and three steps: the update thread's calls
    resume   a state is opened in which a step is prepared, not decided: the main thread's calls

After a fault:

    SV1  a kill ends the node by that signal; EIO and ENOSPC end it with exit code 5, and what it
        said names a file, what the system said and what to do next
    SV2  what is on disk is a whole version, not older than the last that a worker was told to be
        decided, with the weights that plain training has there
    SV3  started again, with the same workers, training ends with the weights of plain training
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from luwu.base.errors import LuwuError
from luwu.wire.description import parse_description
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import weights_digest
from switch_emu.store import FilePageStore
from tests.syscalls import story
from tests.syscalls.story import Child, Place, Workers
from tests.syscalls.tracing import Call, Fault, Tracer, calls_in, inject, watch

PHASES = ("create", "work", "resume")
PREPARED = "store.before_decide=kill@3"
"""Leaves version 2 prepared, and version 1 decided."""
RANDOM_NAMES = ("spill-", "pin-")
"""Files that no restart needs."""


class Violated(Exception):
    """Something that must hold does not."""


@dataclass(frozen=True)
class Trial:
    """One fault at one call."""

    phase: str
    call: Call
    fault: Fault
    paths: tuple[str, ...]
    """What strace counts, all files that the phase touches."""

    def __str__(self) -> str:
        return f"{self.phase}: {self.fault} at {self.call}"


class Stage:
    """Where trials happen: one directory, emptied before each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._crashed = directory / "crashed"

    def trials(self, kinds: Sequence[str]) -> list[Trial]:
        """Every call of an undisturbed story with every fault of some kinds.

        By name and number of the call: in which order pages and what is kept beside them come to
        the update thread differs from run to run.
        """
        trials = []
        for phase in PHASES:
            paths, calls = self._calls(phase)
            for call in sorted(calls, key=lambda call: (call.name, call.number)):
                trials += [Trial(phase, call, fault, paths) for fault in _faults(call, kinds)]
        return trials

    def run(self, trial: Trial) -> bool:
        """Run one; whether the call was reached. Raises Violated."""
        try:
            return self._run(trial)
        except LuwuError as exc:
            raise Violated(f"{exc}\n{self._logs()}") from exc

    def _calls(self, phase: str) -> tuple[tuple[str, ...], list[Call]]:
        """The calls of the thread that a phase is about, and the files of all threads."""
        with ExitStack() as stack:
            place = self._place(phase)
            node, tracer, workers = _start(stack, place, phase, watch)
            code = node.wait("the undisturbed story")
            workers.child.wait("its workers")
            if code != 0 or story.digest_at_the_end(place, 0) != story.reference()[-1]:
                raise LuwuError(f"the undisturbed story ended with {code}\n{self._logs()}")
            found = calls_in(tracer.lines(), lambda path: _is_state(place, path))
        of_main = [call for call in found if call.thread == node.pid]
        paths = tuple(sorted({call.path for call in found}))
        return paths, [c for c in found if c not in of_main] if phase == "work" else of_main

    def _run(self, trial: Trial) -> bool:
        with ExitStack() as stack:
            place = self._place(trial.phase)

            def trace(pid: int, log: Path) -> Tracer:
                return inject(pid, log, trial.call, trial.fault, trial.paths)

            node, tracer, workers = _start(stack, place, trial.phase, trace)
            code = node.wait("the node")
            was_met = _check_end(place, trial, code, tracer.lines())
            number = 0
            if code != 0:
                _check_state(place, workers.decided)
                number = 1
                node = story.start_node(place, number)
                stack.callback(node.end)
                workers.go_on()
                code = node.wait("the node that was started again")
            if code != 0 or workers.child.wait("the workers") != 0:
                raise Violated(f"training ended with exit code {code}\n{self._logs()}")
            digest = story.digest_at_the_end(place, number)
            if digest != story.reference()[-1]:
                raise Violated(f"SV3: digest {digest}, plain training has {story.reference()[-1]}")
            return was_met

    def _place(self, phase: str) -> Place:
        place = Place(self._directory / "trial")
        if phase == "resume" and not self._crashed.exists():
            self._crash()
        shutil.rmtree(place.root, ignore_errors=True)
        place.root.mkdir()
        if phase == "resume":
            shutil.copytree(self._crashed, place.state)
        return place

    def _crash(self) -> None:
        """Make the state that `resume` starts from."""
        with ExitStack() as stack:
            place = self._place("create")
            node = story.start_node(place, 0, crash=PREPARED)
            stack.callback(node.end)
            workers = Workers(place)
            stack.callback(workers.end)
            workers.go_on()
            if node.wait("the crash") != -signal.SIGKILL:
                raise LuwuError(f"the node did not crash at {PREPARED}\n{self._logs()}")
            # Workers are a step ahead: what they attach to it may have come or not. Here it has.
            (place.state / "kept-3-1.dat").touch()
            place.state.rename(self._crashed)

    def _logs(self) -> str:
        logs = sorted((self._directory / "trial").glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')}" for log in logs)


def _start(
    stack: ExitStack, place: Place, phase: str, trace: object
) -> tuple[Child, Tracer, Workers]:
    """Start node and workers, with strace at the node where the phase begins."""
    assert callable(trace)
    log = place.root / "strace.txt"
    gate, opener = os.pipe()
    stack.callback(os.close, gate)
    stack.callback(os.close, opener)
    node = story.start_node(place, 0, gate=gate)
    stack.callback(node.end)
    if phase != "work":
        tracer = trace(node.pid, log)
        stack.callback(tracer.end)
    os.write(opener, b"g")
    workers = Workers(place)
    stack.callback(workers.end)
    if phase == "work":
        story.wait_until(lambda: workers.joined_count == story.WORKERS, "the workers to join")
        tracer = trace(node.pid, log)
        stack.callback(tracer.end)
    workers.go_on()
    return node, tracer, workers


def _faults(call: Call, kinds: Sequence[str]) -> Iterator[Fault]:
    if "kill" in kinds:
        yield "kill before"
        yield "kill after"
    if "eio" in kinds and call.is_write:
        yield "EIO"
    if "enospc" in kinds and call.is_write:
        yield "ENOSPC"


def _is_state(place: Place, path: str) -> bool:
    if path == str(place.root):  # it holds the state's name
        return True
    name = path.removeprefix(f"{place.root}/")
    is_ours = name.startswith(("state", ".state.creating")) and name != path
    return is_ours and not any(word in name for word in RANDOM_NAMES)


def _check_end(place: Place, trial: Trial, code: int, lines: Sequence[str]) -> bool:
    """SV1; whether the call was met at all."""
    if trial.fault in ("kill before", "kill after"):
        number = signal.SIGKILL if trial.fault == "kill before" else signal.SIGABRT
        if code not in (0, -number):
            raise Violated(f"SV1: the node ended with {code}: {story.said_at_the_end(place, 0)}")
        return code != 0
    if not any("(INJECTED)" in line for line in lines):
        return False
    said = story.said_at_the_end(place, 0)
    message = said.get("message", "")
    kind = "StoreFullError" if trial.fault == "ENOSPC" else "StateError"
    wanted = [
        os.strerror(getattr(errno, trial.fault)),
        "Free some space" if trial.fault == "ENOSPC" else "Put the disk right",
        "start the node again",
    ]
    missing = [text for text in wanted if text not in message]
    names = (Path(trial.call.path).name, place.state.name)
    if code != 5 or said.get("type") != kind or missing or not any(n in message for n in names):
        raise Violated(f"SV1: the node ended with {code}, {said.get('type')}: {message or said}")
    return True


def _check_state(place: Place, announced: int) -> None:
    """SV2."""
    if not (place.state / "CONFIG").exists():
        if announced >= 0:
            raise Violated(f"SV2: version {announced} was announced, and there is no state")
        return
    with FilePageStore.open(place.state, read_only=True) as store:
        store.redo = redo_of(store.config)
        found = -1 if store.decided is None else store.decided.version
        if found < announced:
            raise Violated(f"SV2: version {announced} was announced, {found} is decided on disk")
        if found >= 0:
            layout = parse_description(store.config.description).layout
            digest = weights_digest(store, layout)
            if digest != story.reference()[found]:
                raise Violated(f"SV2: version {found} on disk has other weights: {digest}")
