"""Valid messages of every type, and what becomes of their bytes when somebody means harm.

A case is a pure function of (seed, index), so that one that fails is found again without those
before it.
"""

from __future__ import annotations

import math
from dataclasses import fields
from random import Random
from typing import Any, Final

import msgpack

from luwu.aggregate.interface import ENCODED
from luwu.base.dtypes import WIRE_DTYPES
from luwu.base.limits import (
    CLIPS_MAX,
    FIELD_CHARS_MAX,
    INT64_MAX,
    TEXT_CHARS_MAX,
    WORLD_SIZE_MAX,
)
from luwu.base.seeds import derive
from luwu.wire.codec import encode
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule, Push, Role, Verb

SEEDS_PER_TYPE: Final = 24
_NUMBERS: Final = (
    0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, INT64_MAX,
)  # fmt: skip
_STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, -1, -(2**63), 2**63, 2**64 - 1, 0.0, -1.0, math.inf, -math.inf, math.nan,
    "", "a", "x" * 300, "\x00", b"", b"\x00", b"\xff" * 200, [], [[]], [1, 2, 3], {}, {"a": 1},
    {1: 2}, [0] * 40, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2),
)  # fmt: skip
_HEADS: Final = (
    b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xc5\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xd9\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc1", b"\xd8", b"\xcf" + b"\xff" * 8, b"\xcb\x7f\xf8" + bytes(6),
)  # fmt: skip
"""Starts of msgpack values that announce more than comes, or that mean nothing."""


class Cases:
    """Headers of one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = derive(seed, "fuzz", "headers")
        random = Random(self._seed)
        self._valid: list[tuple[bytes, list[Any], int]] = []
        """(header, its values, payload frames) of valid messages."""
        for message_type in MESSAGE_TYPES:
            for _ in range(SEEDS_PER_TYPE):
                message = random_message(random, message_type)
                header = encode(message)
                count = random.choice(payload_counts(message_type))
                self._valid.append((header, msgpack.unpackb(header), count))

    def case(self, index: int) -> tuple[bytes, int]:
        """A header and the number of frames behind it."""
        random = Random(self._seed + index)
        return self.mutated(random, *random.choice(self._valid))

    def mutated(
        self, random: Random, header: bytes, values: list[Any], count: int
    ) -> tuple[bytes, int]:
        """Something like a header."""
        draw = random.random()
        if draw < 0.03:
            return random.randbytes(random.randrange(200)), random.randrange(3)
        if draw < 0.6:
            header = self._other_values(random, values)
        else:
            for _ in range(random.choice((1, 1, 1, 2, 4))):
                header = self._other_bytes(random, header)
        if random.random() < 0.1:
            count = random.randrange(4)
        return header, count

    def _other_values(self, random: Random, values: list[Any]) -> bytes:
        """Another type or number in a field, a field too many or too few, another type's fields."""
        found = list(values)
        at = random.randrange(len(found))
        match random.randrange(6):
            case 0 | 1:
                found[at] = random.choice(_STRANGE)
            case 2:
                found[at] = random.choice(_NUMBERS)
            case 3:
                found[0] = random.choice((*range(36), 255, -1, "1", None))
            case 4:
                other = random.choice(self._valid)[1]
                found[at:] = other[random.randrange(len(other)) :]
            case _:
                deep: Any = random.choice(_STRANGE)
                for _ in range(random.choice((1, 2, 3, 8, 40))):
                    deep = [deep]
                found.insert(at, deep)
        packed: bytes = msgpack.packb(found)
        return packed

    def _other_bytes(self, random: Random, header: bytes) -> bytes:
        at = random.randrange(len(header) + 1)
        match random.randrange(7):
            case 0 if header:
                bit = random.randrange(len(header) * 8)
                flipped = bytearray(header)
                flipped[bit // 8] ^= 1 << bit % 8
                return bytes(flipped)
            case 1:
                return header[:at]
            case 2:
                other = random.choice(self._valid)[0]
                return header[:at] + other[random.randrange(len(other)) :]
            case 3:
                head = random.choice(_HEADS)
                return header[:at] + head + header[at + random.choice((0, 1, len(head))) :]
            case 4:
                return (
                    header[:at]
                    + random.choice((b"\x91", b"\x81", b"\xc0"))
                    * random.choice((1, 30, 60, 600, 4200))
                    + header[at:]
                )
            case 5:
                return header[:at] + random.randbytes(random.randrange(1, 9)) + header[at + 1 :]
            case _:
                return header + header[at:] * random.randrange(1, 4)


def payload_counts(message_type: type[Message]) -> tuple[int, ...]:
    """How many frames may follow a header of this type."""
    return {PayloadRule.NONE: (0,), PayloadRule.ONE: (1,), PayloadRule.OPTIONAL: (0, 1)}[
        message_type.PAYLOAD
    ]


def random_message(random: Random, message_type: type[Message], **fixed: Any) -> Any:
    """A valid message; `fixed`: fields that are not to be drawn."""
    values = {
        entry.name: _random_value(random, message_type, entry.name, str(entry.type))
        for entry in fields(message_type)
    }
    return message_type(**{**values, **fixed})


def _random_value(random: Random, message_type: type[Message], name: str, kind: str) -> Any:
    named: dict[str, Any] = {
        "contributors": lambda: random.getrandbits(random.choice((1, 2, 8, WORLD_SIZE_MAX))),
        "weight": lambda: random.choice((0.0, 1.0, 1.5, random.uniform(0, 1e9))),
        "dtype": lambda: random.choice(
            [*WIRE_DTYPES, *([ENCODED] if message_type is Push else [])]
        ),
        "field": lambda: _text(random, FIELD_CHARS_MAX),
        "description_hash": lambda: _text(random, 64),
    }
    kinds: dict[str, Any] = {
        "int": lambda: random.choice((*_NUMBERS, random.getrandbits(62))),
        "float": lambda: random.choice((0.0, -1.0, math.inf, math.nan, random.uniform(-9, 9))),
        "tuple[float, ...]": lambda: (random.uniform(-9, 9),) * random.randint(1, CLIPS_MAX + 2),
        "bool": lambda: random.random() < 0.5,
        "str": lambda: _text(random, TEXT_CHARS_MAX),
        "Role": lambda: random.choice(list(Role)),
        "Verb": lambda: random.choice(list(Verb)),
    }
    return named.get(name, kinds.get(kind))()


def _text(random: Random, chars_max: int) -> str:
    length = random.choice((0, 1, 8, chars_max))
    return "".join(random.choices("abcdef0123456789 \u00e4", k=length))
