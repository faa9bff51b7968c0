"""Messages to header bytes and back; the only reader of bytes that peers wrote.

A header is one msgpack array: [code, field, field, ...] in the order of the dataclass. An array has
no unknown or missing fields, only a wrong length. Everything is checked before it is believed:
size, nesting, types, ranges, the number of payload frames. What fails raises RemoteProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgpack

from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import (
    CONTROL_HEADER_BYTES_MAX,
    DATA_HEADER_BYTES_MAX,
    FIELD_CHARS_MAX,
    INT64_MAX,
    SEGMENTS_MAX,
    TEXT_CHARS_MAX,
    WORLD_SIZE_MAX,
)
from luwu.layout import DTYPE_BYTES
from luwu.wire.kinds import PayloadRule, Role, Verb
from luwu.wire.messages import MESSAGE_TYPES, Message

_BINARY_BYTES_MAX = max(WORLD_SIZE_MAX, SEGMENTS_MAX) // 8
_FIELDS_MAX = 32
_HASH_CHARS_MAX = 64  # SHA-256 in hex


def encode(message: Message) -> bytes:
    """Header bytes of a message. A message that its receiver would refuse is our own mistake."""
    spec = _SPEC_OF_TYPE[type(message)]
    values: list[object] = [spec.code]
    for name, to_wire, _ in spec.fields:
        values.append(to_wire(getattr(message, name)))
    header: bytes = msgpack.packb(values)
    assert len(header) <= spec.bytes_max, (message, len(header))
    return header


def decode(header: bytes | memoryview, payload_count: int) -> Message:
    """The message of a header followed by `payload_count` frames. Raises RemoteProtocolError."""
    size = len(header)
    if size > CONTROL_HEADER_BYTES_MAX:
        raise RemoteProtocolError(
            f"header of {size} bytes, at most {CONTROL_HEADER_BYTES_MAX} are allowed"
        )
    try:
        values = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            max_str_len=CONTROL_HEADER_BYTES_MAX,
            max_bin_len=_BINARY_BYTES_MAX,
            max_array_len=_FIELDS_MAX,
            max_map_len=0,
            max_ext_len=0,
        )
    except Exception as exc:  # msgpack raises a dozen kinds, ValueError and recursion among them
        raise RemoteProtocolError(f"header is not msgpack: {type(exc).__name__}: {exc}") from exc
    if not isinstance(values, list) or not values or type(values[0]) is not int:
        raise RemoteProtocolError("header is not a list that starts with a message code")
    spec = _SPEC_OF_CODE.get(values[0])
    if spec is None:
        raise RemoteProtocolError(f"message code {values[0]} is unknown to this protocol version")
    if size > spec.bytes_max:
        raise RemoteProtocolError(
            f"{spec.name} header of {size} bytes, at most {spec.bytes_max} are allowed"
        )
    if len(values) != len(spec.fields) + 1:
        raise RemoteProtocolError(
            f"{spec.name} has {len(values) - 1} fields, expected {len(spec.fields)}"
        )
    if payload_count not in _COUNTS[spec.payload]:
        raise RemoteProtocolError(
            f"{spec.name} came with {payload_count} payload frames, "
            f"expected {' or '.join(map(str, _COUNTS[spec.payload]))}"
        )
    arguments = {}
    for (name, _, from_wire), value in zip(spec.fields, values[1:], strict=True):
        try:
            arguments[name] = from_wire(value)
        except ValueError as exc:
            raise RemoteProtocolError(f"{spec.name}.{name}: {exc}") from exc
    return spec.message_type(**arguments)


_COUNTS = {PayloadRule.NONE: (0,), PayloadRule.ONE: (1,), PayloadRule.OPTIONAL: (0, 1)}


def _shown(value: object) -> str:
    """A peer's value for a message; the repr of a deeply nested list would raise RecursionError."""
    return type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.40}"


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{_shown(value)} is not an integer in [0, 2**63)")
    return value


def _number(value: object) -> float:
    if type(value) is not float:
        raise ValueError(f"{_shown(value)} is not a float")
    return value


def _flag(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} is not a boolean")
    return value


def _text(value: object) -> str:
    if type(value) is not str or len(value) > TEXT_CHARS_MAX:
        raise ValueError(f"{_shown(value)} is not a text of at most {TEXT_CHARS_MAX} characters")
    return value


def _text_to_wire(value: str) -> str:
    assert len(value) <= TEXT_CHARS_MAX, value
    return value


def _weight(value: object) -> float:
    number = _number(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{number!r} is no weight: it must be finite and not below 0")
    return number


def _hash(value: object) -> str:
    if type(value) is not str or len(value) > _HASH_CHARS_MAX:
        raise ValueError(f"{_shown(value)} is not a hash of at most {_HASH_CHARS_MAX} digits")
    return value


def _field(value: object) -> str:
    if len(_text(value)) > FIELD_CHARS_MAX:
        raise ValueError(f"{_shown(value)} is not a field's name of at most {FIELD_CHARS_MAX}")
    return str(value)


def _dtype(value: object) -> str:
    if _text(value) not in DTYPE_BYTES:
        raise ValueError(f"{_shown(value)} is not one of {', '.join(DTYPE_BYTES)}")
    return str(value)


def _gradient_dtype(value: object) -> str:
    return ENCODED if value == ENCODED else _dtype(value)


def _bitmap(value: object, count_max: int, of: str) -> int:
    if type(value) is not bytes or len(value) > count_max // 8 or value[-1:] == b"\0":
        raise ValueError(f"{_shown(value)} is not a bitmap of at most {count_max} {of}")
    return int.from_bytes(value, "little")


def _ranks(value: object) -> int:
    return _bitmap(value, WORLD_SIZE_MAX, "ranks")


def _segments(value: object) -> int:
    return _bitmap(value, SEGMENTS_MAX, "segments")


def _bitmap_to_wire(value: int) -> bytes:
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def _role(value: object) -> Role:
    return Role(_natural(value))


def _verb(value: object) -> Verb:
    return Verb(_natural(value))


_ToWire = Callable[[Any], object]
_FromWire = Callable[[object], Any]

_OF_NAME: dict[str, tuple[_ToWire, _FromWire]] = {
    "contributors": (_bitmap_to_wire, _ranks),
    "present": (_bitmap_to_wire, _ranks),
    "lost": (_bitmap_to_wire, _ranks),
    "absent": (_bitmap_to_wire, _segments),
    "dtype": (str, _dtype),
    "Push.dtype": (str, _gradient_dtype),
    "field": (str, _field),
    "weight": (float, _weight),
    "hyper_hash": (str, _hash),
    "description_hash": (str, _hash),
}

_CONVERTERS: dict[str, tuple[_ToWire, _FromWire]] = {
    "int": (int, _natural),
    "float": (float, _number),
    "bool": (bool, _flag),
    "str": (_text_to_wire, _text),
    "Role": (int, _role),
    "Verb": (int, _verb),
}


class _Spec:
    """The wire form of one message type, derived from its dataclass."""

    def __init__(self, message_type: type[Message]) -> None:
        self.message_type = message_type
        self.name = message_type.__name__
        self.code = message_type.CODE
        self.payload = message_type.PAYLOAD
        self.bytes_max = DATA_HEADER_BYTES_MAX if message_type.IS_DATA else CONTROL_HEADER_BYTES_MAX
        self.fields: list[tuple[str, _ToWire, _FromWire]] = []
        for entry in fields(message_type):
            known = _OF_NAME.get(f"{self.name}.{entry.name}") or _OF_NAME.get(entry.name)
            to_wire, from_wire = known or _CONVERTERS[str(entry.type)]
            self.fields.append((entry.name, to_wire, from_wire))


_SPEC_OF_TYPE = {message_type: _Spec(message_type) for message_type in MESSAGE_TYPES}
_SPEC_OF_CODE = {spec.code: spec for spec in _SPEC_OF_TYPE.values()}
