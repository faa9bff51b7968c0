"""Messages to header bytes and back; the only reader of bytes that peers wrote.

A header is one msgpack array: [code, field, field, ...] in the order of the dataclass. An array has
no unknown or missing fields, only a wrong length. Everything is checked before it is believed:
size, nesting, types, ranges, the number of payload frames. What fails raises RemoteProtocolError.

How a field travels is a `_Wire`, found once for each message class from the names and types of its
fields. From these each class gets one function that encodes and one that decodes. They look at all
types at once, and at all integers at once; a call for each field was half of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgpack

from luwu.aggregate.interface import ENCODED
from luwu.base.dtypes import WIRE_DTYPES
from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import (
    CLIPS_MAX,
    CONTROL_HEADER_BYTES_MAX,
    DATA_HEADER_BYTES_MAX,
    FIELD_CHARS_MAX,
    INT64_MAX,
    SEGMENTS_MAX,
    TEXT_CHARS_MAX,
    WORLD_SIZE_MAX,
)
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule, Role, Verb

_BINARY_BYTES_MAX: Final = max(WORLD_SIZE_MAX, SEGMENTS_MAX) // 8
_FIELDS_MAX: Final = 32
_HASH_CHARS_MAX: Final = 64  # SHA-256 in hex
_COUNTS: Final = {PayloadRule.NONE: (0,), PayloadRule.ONE: (1,), PayloadRule.OPTIONAL: (0, 1)}
_pack: Final[Callable[[Sequence[object]], bytes]] = msgpack.Packer().pack
"""The packer of all threads: it holds the interpreter's lock from its first byte to its last."""
_unpack: Final = partial(
    msgpack.unpackb,
    raw=False,
    strict_map_key=True,
    max_str_len=CONTROL_HEADER_BYTES_MAX,
    max_bin_len=_BINARY_BYTES_MAX,
    max_array_len=_FIELDS_MAX,
    max_map_len=0,
    max_ext_len=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wire:
    """How one field travels: what it is in a header, and which values are taken.

    An integer in a header is in [0, 2**63), whatever it means.
    """

    of: type
    """The exact type in a header; of a bitmap, bytes."""
    what: str
    """The expected value, as text."""
    bytes_max: int = 0
    """Most bytes of a bitmap."""
    taken: Callable[[Any], object] | None = None
    """The value in the message. Raises LookupError or ValueError for one that is not taken. None:
    each is, as it is."""
    to_wire: Callable[[Any], object] | None = None
    """What the message's value is in a header; None: the same."""


def _text(chars_max: int, what: str) -> _Wire:
    def taken(value: str) -> str:
        if len(value) > chars_max:
            raise ValueError(value)
        return value

    what = f"{what} of at most {chars_max} characters"
    return _Wire(of=str, what=what, taken=taken)


def _bitmap(count_max: int, of: str) -> _Wire:
    what = f"a bitmap of at most {count_max} {of}"
    return _Wire(of=bytes, what=what, bytes_max=count_max // 8)


def _name(*names: str) -> _Wire:
    taken = {name: name for name in names}.__getitem__
    return _Wire(of=str, what=f"one of {', '.join(names)}", taken=taken)


def _number(of: type[IntEnum]) -> _Wire:
    taken = {int(each): each for each in of}.__getitem__
    return _Wire(of=int, what=f"the number of a {of.__name__}", taken=taken)


def _weight(value: float) -> float:
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(value)
    return value


def _floats(values: list[object]) -> tuple[object, ...]:
    if not 1 <= len(values) <= CLIPS_MAX + 2 or {*map(type, values)} != {float}:
        raise ValueError(values)
    return tuple(values)


_OF_TYPE: Final = {
    "int": _Wire(of=int, what="an integer in [0, 2**63)"),
    "float": _Wire(of=float, what="a float", to_wire=float),
    "bool": _Wire(of=bool, what="a boolean", to_wire=bool),
    "tuple[float, ...]": _Wire(of=list, what=f"1 to {CLIPS_MAX + 2} floats", taken=_floats),
    "str": _text(TEXT_CHARS_MAX, "a text"),
    "Role": _number(Role),
    "Verb": _number(Verb),
}
_OF_NAME: Final = {
    "contributors": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "present": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "lost": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "absent": _bitmap(SEGMENTS_MAX, "segments"),
    "dtype": _name(*WIRE_DTYPES),
    "Push.dtype": _name(*WIRE_DTYPES, ENCODED),
    "field": _text(FIELD_CHARS_MAX, "a field's name"),
    "weight": _Wire(of=float, what="a finite weight of at least 0", taken=_weight, to_wire=float),
    "description_hash": _text(_HASH_CHARS_MAX, "a hash"),
}


class _Kind:
    """How one message class travels, derived from its fields."""

    def __init__(self, message_type: type[Message]) -> None:
        self.name = message_type.__name__
        self.payload_counts = _COUNTS[message_type.PAYLOAD]
        self.bytes_max = DATA_HEADER_BYTES_MAX if message_type.IS_DATA else CONTROL_HEADER_BYTES_MAX
        self._names = tuple(entry.name for entry in fields(message_type))
        self._wires = tuple(
            _OF_NAME.get(f"{self.name}.{entry.name}")
            or _OF_NAME.get(entry.name)
            or _OF_TYPE[str(entry.type)]
            for entry in fields(message_type)
        )
        self._bitmaps = tuple(
            (place, wire.bytes_max) for place, wire in enumerate(self._wires, 1) if wire.of is bytes
        )
        self._types = types = (int, *(wire.of for wire in self._wires))
        self._integers_of = itemgetter(*(place for place, of in enumerate(types) if of is int))
        self._taken = tuple(
            (place, wire.taken)
            for place, wire in enumerate(self._wires, 1)
            if wire.taken is not None
        )
        self.encode = self._encoder(message_type)
        self.decode = self._decoder(message_type)

    def _encoder(self, message_type: type[Message]) -> Callable[[Message], bytes]:
        code, bytes_max, bitmaps = message_type.CODE, self.bytes_max, self._bitmaps
        values_of = attrgetter(*self._names)
        changed = tuple(
            (place, wire.to_wire)
            for place, wire in enumerate(self._wires, 1)
            if wire.to_wire is not None
        )

        def encode(message: Message) -> bytes:
            values = [code, *values_of(message)]
            integers = self._integers_of(values)
            assert 0 <= min(integers) <= max(integers) <= INT64_MAX, message
            for place, to_wire in changed:
                values[place] = to_wire(values[place])
            for place, taken in self._taken:
                try:
                    taken(values[place])
                except (LookupError, ValueError) as exc:
                    raise AssertionError(message) from exc
            for place, bitmap_bytes_max in bitmaps:
                bits: Any = values[place]
                assert bits.bit_length() <= 8 * bitmap_bytes_max, message
                values[place] = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            header = _pack(values)
            assert len(header) <= bytes_max, (message, len(header))
            return header

        return encode

    def _decoder(self, message_type: type[Message]) -> Callable[[list[Any]], Message]:
        make: Callable[..., Message] = message_type
        bitmaps, types, changed = self._bitmaps, self._types, self._taken
        integers_of = self._integers_of

        def decode(values: list[Any]) -> Message:
            if tuple(map(type, values)) != types:
                raise self._refused(values, types)
            integers = integers_of(values)
            if min(integers) < 0 or max(integers) > INT64_MAX:
                raise self._refused(values, types)
            for place, taken in changed:
                try:
                    values[place] = taken(values[place])
                except (LookupError, ValueError) as exc:
                    raise self._misfit(place, values[place]) from exc
            for place, bitmap_bytes_max in bitmaps:
                value = values[place]
                if len(value) > bitmap_bytes_max or value[-1:] == b"\0":
                    raise self._misfit(place, value)
                values[place] = int.from_bytes(value, "little")
            del values[0]
            return make(*values)

        return decode

    def _refused(self, values: list[object], types: tuple[type, ...]) -> RemoteProtocolError:
        """The error of values of another number or type, or of an integer out of range."""
        if len(values) != len(types):
            return RemoteProtocolError(
                f"{self.name} has {len(values) - 1} fields, expected {len(types) - 1}"
            )
        place = next(
            place
            for place, (value, of) in enumerate(zip(values, types, strict=True))
            if type(value) is not of or (isinstance(value, int) and not 0 <= value <= INT64_MAX)
        )
        return self._misfit(place, values[place])

    def _misfit(self, place: int, value: object) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self.name}.{self._names[place - 1]}: {_shown(value)} is not "
            f"{self._wires[place - 1].what}"
        )


_KIND_OF_TYPE: Final = {message_type: _Kind(message_type) for message_type in MESSAGE_TYPES}
_KIND_OF_CODE: Final = {each.CODE: kind for each, kind in _KIND_OF_TYPE.items()}
_ENCODERS: Final = {each: kind.encode for each, kind in _KIND_OF_TYPE.items()}


def encode(message: Message) -> bytes:
    """Header bytes of a message. A message that its receiver would refuse is our own mistake."""
    return _ENCODERS[type(message)](message)


def decode(header: bytes | memoryview, payload_count: int) -> Message:
    """The message of a header followed by `payload_count` frames. Raises RemoteProtocolError."""
    size = len(header)
    if size > CONTROL_HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"header of {size} bytes, at most {CONTROL_HEADER_BYTES_MAX} are allowed"
        )
    try:
        values = _unpack(header)
    except Exception as exc:  # msgpack raises a dozen kinds, ValueError and recursion among them
        raise RemoteProtocolError(f"header is not msgpack: {type(exc).__name__}: {exc}") from exc
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise RemoteProtocolError("header is not a list that starts with a message code")
    kind = _KIND_OF_CODE.get(values[0])
    if kind is None:
        raise RemoteProtocolError(f"message code {values[0]} is unknown to this protocol version")
    if size > kind.bytes_max:
        raise RemoteProtocolError(
            f"{kind.name} header of {size} bytes, at most {kind.bytes_max} are allowed"
        )
    if payload_count not in kind.payload_counts:
        raise RemoteProtocolError(
            f"{kind.name} came with {payload_count} payload frames, "
            f"expected {' or '.join(map(str, kind.payload_counts))}"
        )
    return kind.decode(values)


def _shown(value: object) -> str:
    """A peer's value for a message; the repr of a deeply nested list would raise RecursionError."""
    return type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.40}"
