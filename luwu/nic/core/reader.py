"""A reader's side of the protocol as a state machine: a decided version, field by field. Pure.

    open    Open, repeated until   Opened    -> VersionOpened
    read    Read, repeated until   Content   -> FieldReceived
    shut    Shut, repeated until   Gone      -> ReaderGone
    any time                       Gone      -> ReaderGone: the version is not held any more

A reader is no member of the job: it may come and go while training goes on, and nothing it does
holds a step up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import Drop, Payload, Send
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.messages import Role
from luwu.wire.reading import VersionFacts, parse_facts

RETRY = RetryPolicy(first_ns=500_000_000)
"""Quicker than a member's: a node without weights does not answer until it has some."""


@dataclass(frozen=True, slots=True)
class VersionOpened:
    """A version is held for this reader."""

    facts: VersionFacts


@dataclass(frozen=True, slots=True)
class FieldReceived:
    """A field that was requested; the payload is the shell's from now on."""

    chunk: int
    field: str
    payload: Payload


@dataclass(frozen=True, slots=True)
class ReaderGone:
    """No version is held for this reader any more."""

    text: str


Action = Send | Drop | VersionOpened | FieldReceived | ReaderGone


class ReaderCore:
    """One reader; see the module."""

    FROM_PARENT: ClassVar[Mapping[type[wire.ReaderAnswer], str]] = {
        wire.Opened: "_opened",
        wire.Content: "_content",
        wire.Gone: "_gone",
    }
    """The method for each message to this reader. Any other is ignored: its payload is dropped."""

    def __init__(self, *, job: int, reader: int, retry: RetryPolicy = RETRY) -> None:
        """`reader` is a random number, so that no other reader has the same."""
        self.out = Outbox(job=job, role=Role.READER, rank=0, incarnation=reader)
        self.uplink = Uplink(self.out.actions, retry)
        self._reader = reader
        self._is_open = False
        self._handlers: dict[type[wire.Message], Callable[..., None]] = {
            kind: attrgetter(name)(self) for kind, name in self.FROM_PARENT.items()
        }

    def open(self, now_ns: int) -> list[Action]:
        """Request the newest decided version to be held."""
        self.uplink.ask(now_ns, "open", self.out.stamped(wire.Open, reader=self._reader))
        return self.out.take()

    def read(self, now_ns: int, chunk: int, field: str, dtype: str) -> list[Action]:
        """Request a field of a page."""
        read = self.out.stamped(
            wire.Read, index=chunk, part=0, reader=self._reader, field=field, dtype=dtype
        )
        self.uplink.ask(now_ns, (chunk, field), read)
        return self.out.take()

    def shut(self, now_ns: int) -> list[Action]:
        """Announce that the version is not needed any more."""
        self.uplink.forget()
        self.uplink.ask(now_ns, "shut", self.out.stamped(wire.Shut, reader=self._reader))
        return self.out.take()

    def received(self, message: wire.Message, payload: Any) -> list[Action]:
        """A message of the parent was received."""
        handler = self._handlers.get(type(message))
        if handler is None or message.reader != self._reader:  # type: ignore[attr-defined]
            self.out.ignore(message, payload)
        else:
            handler(message, payload)
        return self.out.take()

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection is back: repeat everything at once."""
        self.uplink.hurry(now_ns)
        return self.tick(now_ns)

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due."""
        self.uplink.tick(now_ns)
        return self.out.take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self.uplink.next_tick_ns()

    def waits_for(self) -> str:
        """The next event that the reader waits for, as text."""
        if not self._is_open:
            return "the node to hold a decided version (it has none before its weights are loaded)"
        return f"{len(self.uplink)} answers"

    def _opened(self, m: wire.Opened, payload: bytes) -> None:
        if self.uplink.answered("open"):
            self.out.step, self._is_open = m.step, True
            self.out.actions.append(VersionOpened(parse_facts(payload)))

    def _content(self, m: wire.Content, payload: Payload) -> None:
        if self.uplink.answered((m.index, m.field)):
            self.out.actions.append(FieldReceived(m.index, m.field, payload))
        else:
            self.out.ignore(m, payload)

    def _gone(self, m: wire.Gone, payload: None) -> None:
        self.uplink.forget()
        self.out.actions.append(ReaderGone(m.text))
