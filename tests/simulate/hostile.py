"""Peers that say what they should not: strangers, replays, former starts, absurd numbers.

    stranger    messages of every type, with fields near the truth, on a connection nobody knows
    replay      what others said before, word for word, on such a connection
    stale       Hello of a member's earlier start, of a wrong job, of wrong ranks, to a parent that
                knows its children: one that was just started believes the first that comes
    absurd      out-of-range fields on the connection of a member, which it is believed to be (but
                for a push, or of no extent a pull or a proposal: a member is then heard no more)

None of it may change anything: a history with them ends as one without. What a member may do that
nobody could tell from training (push wrong gradients, never push) is not among them, nor a Hello
with the right words and a later start: who may say that is for keys to settle, not for the cores.
"""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

from luwu.wire import messages as wire
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule, Role, Verb
from tests.simulate.world import STRANGERS

KINDS = ("stranger", "replay", "stale", "absurd")

HUGE = 1 << 60
_MAY_SAY = [
    kind for kind in MESSAGE_TYPES
    if kind not in (wire.Hello, wire.Open, wire.Read, wire.Shut)  # a reader's are anybody's to say
]  # fmt: skip


class Attacker:
    """Makes hostile messages from what it overheard."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._heard: list[tuple[Message, Any]] = []
        self._last: dict[str, tuple[str, Message]] = {}
        """Receiver -> who spoke to it last, and what it said."""
        self._hello: tuple[wire.Hello, bytes] | None = None

    def hear(self, sender: str, receiver: str, message: Message, payload: Any) -> None:
        """Something was sent."""
        self._last[receiver] = (sender, message)
        if isinstance(message, wire.Hello) and message.role is not Role.NODE:
            self._hello = (message, payload)
        elif isinstance(message, tuple(_MAY_SAY)) and len(self._heard) < 5000:
            self._heard.append((message, payload if isinstance(payload, bytes) else None))

    def say(self, kind: str, receiver: str) -> tuple[str, Message, Any] | None:
        """(sender, message, payload) of something hostile; None while too little was heard."""
        if not self._heard or self._hello is None or receiver not in self._last:
            return None
        stranger = self._random.choice(STRANGERS)
        if kind == "stranger":
            return stranger, *self._made_up(self._random.choice(_MAY_SAY))
        if kind == "replay":
            message, payload = self._random.choice(self._heard)
            return stranger, message, self._payload(message, payload)
        if kind == "stale":
            return stranger, *self._stale_hello()
        sender, like = self._last[receiver]
        return sender, *self._absurd(like)

    def _made_up(self, kind: type[Message]) -> tuple[Message, Any]:
        like, _ = self._random.choice(self._heard)
        values = {each.name: self._value(each.name, str(each.type), like) for each in fields(kind)}
        message = kind(**values)
        return message, self._payload(message, None)

    def _value(self, name: str, type_name: str, like: Message) -> Any:
        random = self._random
        if name == "dtype":
            return "float32"  # a push may be encoded, and nothing else
        if hasattr(like, name) and random.random() < 0.7:
            return getattr(like, name)
        if name == "contributors":
            return random.randrange(64)
        choices = {
            "int": lambda: random.choice((0, 1, 2, 3, random.randrange(20), HUGE)),
            "float": lambda: random.choice((0.0, 1.0, 1e30)),
            "tuple[float, ...]": lambda: (random.choice((0.0, 1.0, 1e30)),) * random.randint(1, 3),
            "bool": lambda: random.random() < 0.5,
            "str": lambda: "x",
            "Role": lambda: random.choice(list(Role)),
            "Verb": lambda: random.choice(list(Verb)),
        }
        return choices[type_name]()

    def _payload(self, message: Message, payload: bytes | None) -> bytes | None:
        if message.PAYLOAD is PayloadRule.NONE:
            return None
        if (
            payload is None
            and message.PAYLOAD is PayloadRule.OPTIONAL
            and self._random.random() < 0.3
        ):
            return None
        return payload or bytes(4 * self._random.choice((0, 1, 64, 4096)))

    def _stale_hello(self) -> tuple[Message, Any]:
        assert self._hello is not None
        hello, description = self._hello
        wrong: dict[str, Any] = self._random.choice(
            (
                {"incarnation": 0},
                {"job": hello.job + 1},
                {"contributors": 1 << 40, "incarnation": HUGE},
                {"protocol": 10_000, "incarnation": HUGE},
                {"world_size": 1000, "incarnation": 0},
                {"description_hash": "x", "incarnation": HUGE},
            )
        )
        return replace(hello, **wrong), description

    def _absurd(self, like: Message) -> tuple[Message, Any]:
        """Of a member, current in all that makes it one."""
        stamp = {each.name: getattr(like, each.name) for each in fields(Message)}
        far = {**stamp, "step": HUGE}
        kinds: list[Message] = [
            wire.Pull(**far, index=0, part=0),
            wire.Commit(**far, contributors=1, parts=HUGE, skip=True),
            wire.Begin(**far, contributors=1),
            wire.Propose(**far, index=0, part=HUGE, contributors=1),
            wire.Keep(**far, index=HUGE, part=0, contributors=1 << 50, pieces=HUGE),
        ]  # fmt: skip
        message = self._random.choice(kinds)
        return message, self._payload(message, None)
