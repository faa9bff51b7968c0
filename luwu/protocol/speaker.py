"""What the three cores share: who they are, which attempt counts, and the actions they collect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.wire.kinds import Role
from luwu.wire.messages import Message

MessageT = TypeVar("MessageT", bound=Message)


class Speaker:
    """A member that stamps what it says with its identity and the attempt that counts."""

    def __init__(self, *, job: int, role: Role, rank: int, incarnation: int) -> None:
        self._me = {"job": job, "role": role, "rank": rank, "incarnation": incarnation}
        self._epoch = self._generation = self._attempt = 0
        self._step = 0
        """The first undecided step."""
        self._actions: list[Any] = []

    def _ours(self, kind: type[MessageT], **fields: Any) -> MessageT:
        """A message of ours; `fields` are its own, and those of the stamp that differ."""
        return kind(
            **{
                **self._me,
                "epoch": self._epoch,
                "step": self._step,
                "attempt": self._attempt,
                "generation": self._generation,
                **fields,
            }
        )

    def _tell(self, peer: str, message: Message) -> None:
        """Say something to one peer; what was first said under an older attempt is stamped anew."""
        if message.attempt != self._attempt or message.generation != self._generation:
            message = replace(
                message, attempt=self._attempt, generation=self._generation, epoch=self._epoch
            )
        self._actions.append(Send((peer,), message))

    def _announce(
        self, peers: Sequence[str], message: Message, payload: Payload | None = None
    ) -> None:
        """Say something to several peers."""
        self._actions.append(Send(tuple(peers), message, payload))

    def _drop(self, payload: Payload | None) -> None:
        if payload is not None:
            self._actions.append(Drop(payload))

    def _refuse(self, m: Message, payload: Any) -> None:
        """Do nothing with a message; let go of its data payload."""
        if m.IS_DATA:
            self._drop(payload)

    def _note(self, name: str, level: str = "INFO", **fields: object) -> None:
        self._actions.append(Note(name, tuple(fields.items()), level))

    def _take(self) -> list[Any]:
        taken = self._actions[:]
        self._actions.clear()
        return taken
