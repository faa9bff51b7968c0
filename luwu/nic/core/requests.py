"""Handles that are not done: which chunks each still misses, and whose answer is whose.

    opened   `Handles.open`    it misses every chunk
    asked    `Handles.expect`  the answer of this name will be for this handle
    came     `Handles.came`    one chunk less; with the last the handle is done, and is forgotten
    judged   `Handles.judge`   a pull is done only after the verdict of the step before its own

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from luwu.nic.core.actions import Done

Name = tuple[str, int, int, int]
"""(verb, step, part, chunk) of a request, and so of its answer."""


@dataclass(slots=True)
class _Open:
    missing: set[int]
    chunks: tuple[int, ...]
    pull: tuple[int, int] | None
    """(step, part) of a pull."""

    def pull_names(self) -> list[Name]:
        """What a pull asks for; nothing if it is none."""
        return [("pull", *self.pull, chunk) for chunk in self.chunks] if self.pull else []


class Handles:
    """Open handles of one worker; `actions` is where `Done` is appended."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = actions
        self._open: dict[int, _Open] = {}
        self._handle_of: dict[Name, int] = {}
        self.judged = -1
        """Weights up to this step plus one may be used."""

    def open(self, handle: int, chunks: Iterable[int], pull: tuple[int, int] | None = None) -> None:
        """Something was asked for; of a pull, its (step, part)."""
        chunks = tuple(chunks)
        self._open[handle] = _Open(set(chunks), chunks, pull)

    def expect(self, handle: int, name: Name) -> None:
        """A request was said: its answer is for this handle."""
        self._handle_of[name] = handle

    def answered(self, name: Name) -> int | None:
        """The handle an answer is for, once; None if nobody waits for it."""
        return self._handle_of.pop(name, None)

    def came(self, handle: int, chunk: int) -> None:
        """What a chunk was asked for is there."""
        self._open[handle].missing.discard(chunk)
        self.close_if_done(handle)

    def close_if_done(self, handle: int) -> None:
        """Say `Done` of a handle that misses nothing and may be used."""
        entry = self._open[handle]
        if entry.missing or (entry.pull is not None and entry.pull[0] > self.judged + 1):
            return
        del self._open[handle]
        self._actions.append(Done(handle))

    def judge(self, step: int) -> None:
        """The verdict of a step is known: weights for the next may be used."""
        self.judged = step
        for handle in list(self._open):
            self.close_if_done(handle)

    def pulls(self, step: int | None = None) -> Iterator[int]:
        """Open pulls, or those for one step."""
        for handle, entry in self._open.items():
            if entry.pull is not None and step in (None, entry.pull[0]):
                yield handle

    def pull_names(self, handle: int, step_max: int) -> list[Name]:
        """What a pull asks for; nothing if it is for a later step than `step_max`."""
        entry = self._open[handle]
        assert entry.pull is not None
        return entry.pull_names() if entry.pull[0] <= step_max else []

    def void(self, handle: int) -> None:
        """What came for a pull must not be used: it misses every chunk again."""
        entry = self._open[handle]
        entry.missing = set(entry.chunks)

    def forget(self, handle: int) -> list[Name]:
        """Nobody waits for this handle any more; what it asked for, of a pull."""
        entry = self._open.pop(handle, None)
        names = [] if entry is None else entry.pull_names()
        for name in names:
            self._handle_of.pop(name, None)
        return names

    def clear(self, judged: int) -> None:
        """A new attempt: every open handle is void; `judged` is the last step that counts."""
        self.judged = judged
        self._open.clear()
        self._handle_of.clear()

    def waits_for(self) -> str:
        """The first answer that is missing, for people; empty if none is."""
        for verb, step, part, chunk in self._handle_of:
            answer = "weights" if verb == "pull" else "a receipt"
            return f"{answer} for the {verb} of step {step}, chunk {chunk}, part {part}"
        return ""
