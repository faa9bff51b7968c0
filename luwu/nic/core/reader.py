"""A reader's side of the protocol as a state machine: a decided version, field by field. Pure.

    open    Open, repeated until   Opened    -> VersionOpened
    read    Read, repeated until   Content   -> FieldCame
    shut    Shut, repeated until   Gone      -> ReaderGone
    any time                       Gone      -> ReaderGone: nothing is held any more

A reader is no member of the job: it may come and go while training goes on, and nothing it does
holds a step up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import Drop, Payload, Send
from luwu.protocol.speaker import Speaker
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from luwu.wire.reading import VersionFacts, parse_facts

RETRY = RetryPolicy(first_ns=500_000_000)
"""Quicker than a member's: a node without weights says nothing until it has some."""


@dataclass(frozen=True, slots=True)
class VersionOpened:
    """A version is held for us."""

    facts: VersionFacts


@dataclass(frozen=True, slots=True)
class FieldCame:
    """A field that was asked for; the payload is the shell's from now on."""

    chunk: int
    field: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class ReaderGone:
    """Nothing is held for us any more."""

    text: str


Action = Send | Drop | VersionOpened | FieldCame | ReaderGone


class ReaderCore(Speaker):
    """See the module; `reader` is a number that no other reader has, by chance."""

    def __init__(self, *, job: int, reader: int, retry: RetryPolicy = RETRY) -> None:
        super().__init__(job=job, role=Role.READER, rank=0, incarnation=reader)
        self._reader = reader
        self._uplink = Uplink(self._actions, retry)
        self._is_open = False

    def open(self, now_ns: int) -> list[Action]:
        """Ask for the newest decided version to be held."""
        self._uplink.ask(now_ns, "open", self._ours(wire.Open, reader=self._reader))
        return self._take()

    def read(self, now_ns: int, chunk: int, field: str, dtype: str) -> list[Action]:
        """Ask for a field of a page."""
        read = self._ours(
            wire.Read, chunk=chunk, part=0, reader=self._reader, field=field, dtype=dtype
        )
        self._uplink.ask(now_ns, (chunk, field), read)
        return self._take()

    def shut(self, now_ns: int) -> list[Action]:
        """Say that we are done."""
        self._uplink.forget()
        self._uplink.ask(now_ns, "shut", self._ours(wire.Shut, reader=self._reader))
        return self._take()

    def received(self, message: wire.Message, payload: Any) -> list[Action]:
        """A message of the parent came."""
        m = message
        if isinstance(m, wire.Opened) and m.reader == self._reader:
            if self._uplink.answered("open"):
                self._step, self._is_open = m.step, True
                self._actions.append(VersionOpened(parse_facts(payload)))
        elif isinstance(m, wire.Gone) and m.reader == self._reader:
            self._uplink.forget()
            self._actions.append(ReaderGone(m.text))
        elif (
            isinstance(m, wire.Content)
            and m.reader == self._reader
            and self._uplink.answered((m.chunk, m.field))
        ):
            self._actions.append(FieldCame(m.chunk, m.field, payload))
        else:
            self._refuse(m, payload)
        return self._take()

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection is back: ask again at once."""
        self._uplink.hurry(now_ns)
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self._uplink.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self._uplink.next_tick_ns()

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._is_open:
            return "the node to hold a decided version (it has none before its weights are loaded)"
        return f"{len(self._uplink)} answers"
