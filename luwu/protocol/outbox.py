"""The outbox of a core: who it is, its position, and the actions it has collected.

Every core has one, and hands it to its parts. Messages are stamped here, so that all parts send
under the same identity and the same attempt. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.wire import messages as wire
from luwu.wire.messages import Role, Verb

MessageT = TypeVar("MessageT", bound=wire.Message)


class Outbox:
    """Identity, position and collected actions of one member of a job."""

    def __init__(self, *, job: int, role: Role, rank: int, incarnation: int) -> None:
        self.job, self.role, self.rank, self.incarnation = job, role, rank, incarnation
        self.epoch = self.generation = self.attempt = 0
        self.step = 0
        """The first undecided step."""
        self.now_ns = 0
        """The time of the event that is handled."""
        self.actions: list[Any] = []

    def stamped(self, kind: type[MessageT], **fields: Any) -> MessageT:
        """A message of this member; `fields` are its own, and those of the stamp that differ."""
        return kind(
            **{
                "job": self.job,
                "role": self.role,
                "rank": self.rank,
                "incarnation": self.incarnation,
                "epoch": self.epoch,
                "step": self.step,
                "attempt": self.attempt,
                "generation": self.generation,
                **fields,
            }
        )

    def receipt(self, m: wire.Message, verb: Verb, contributors: int = 0) -> wire.Received:
        """The receipt of a message."""
        index, part = (m.index, m.part) if isinstance(m, wire.DataMessage) else (0, 0)
        return self.receipt_of(verb, m.step, index, part, contributors)

    def receipt_of(
        self, verb: Verb, step: int, index: int = 0, part: int = 0, contributors: int = 0
    ) -> wire.Received:
        """The same, of a message that is gone."""
        return self.stamped(
            wire.Received, step=step, index=index, part=part, verb=verb, contributors=contributors
        )

    def send(self, peer: str, message: wire.Message) -> None:
        """Send to one peer; a message that was made under an older attempt is stamped again."""
        if message.attempt != self.attempt or message.generation != self.generation:
            message = replace(
                message, attempt=self.attempt, generation=self.generation, epoch=self.epoch
            )
        self.actions.append(Send((peer,), message))

    def send_all(
        self, peers: Sequence[str], message: wire.Message, payload: Payload | bytes | None = None
    ) -> None:
        """Send to several peers, as it is."""
        self.actions.append(Send(tuple(peers), message, payload))

    def drop(self, payload: Payload | None) -> None:
        """Release a data payload, if there is one."""
        if payload is not None:
            self.actions.append(Drop(payload))

    def drop_all(self, payloads: Iterable[Payload | None]) -> None:
        """Release several."""
        for payload in payloads:
            self.drop(payload)

    def ignore(self, m: wire.Message, payload: Any) -> None:
        """Do nothing with a message but release its data payload."""
        if m.IS_DATA:
            self.drop(payload)

    def note(self, name: str, level: str = "INFO", **fields: object) -> None:
        """A line of the log."""
        self.actions.append(Note(name, tuple(fields.items()), level))

    def take(self) -> list[Any]:
        """All actions since the last call, in order."""
        taken = self.actions[:]
        self.actions.clear()
        return taken
