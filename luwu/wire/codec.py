"""Messages to header bytes and back; the only reader of bytes that peers wrote.

A header is one msgpack array: [code, field, field, ...] in the order of the dataclass. An array has
no unknown or missing fields, only a wrong length. Everything is checked before it is believed:
size, nesting, types, ranges, the number of payload frames. What fails raises RemoteProtocolError.

How a field travels is a `_Wire`, found once for each message class from the names and types of its
fields. Both directions go over these in one loop that calls no function for a field: every message
passes here, and a call for each field was half of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

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

_BINARY_BYTES_MAX: Final = max(WORLD_SIZE_MAX, SEGMENTS_MAX) // 8
_FIELDS_MAX: Final = 32
_HASH_CHARS_MAX: Final = 64  # SHA-256 in hex
_COUNTS: Final = {PayloadRule.NONE: (0,), PayloadRule.ONE: (1,), PayloadRule.OPTIONAL: (0, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wire:
    """How one field travels: what it is in a header, and which values are taken."""

    of: type
    """The exact type in a header; of a bitmap, bytes."""
    what: str
    """The expected value, as text."""
    most: float | None = None
    """The largest number; the least is 0. None: every number."""
    length_max: int | None = None
    """Maximum length of a text or bitmap."""
    members: Mapping[Any, Any] | None = None
    """The values that are taken, and what each is in the message; None: all, as they are."""
    to_wire: Callable[[Any], object] | None = None
    """A builtin type that makes the message's value what it is in a header; None: a bitmap."""


def _text(chars_max: int, what: str) -> _Wire:
    what = f"{what} of at most {chars_max} characters"
    return _Wire(of=str, what=what, length_max=chars_max, to_wire=str)


def _bitmap(count_max: int, of: str) -> _Wire:
    what = f"a bitmap of at most {count_max} {of}"
    return _Wire(of=bytes, what=what, length_max=count_max // 8)


def _name(*names: str) -> _Wire:
    members = {name: name for name in names}
    return _Wire(of=str, what=f"one of {', '.join(names)}", members=members, to_wire=str)


def _number(of: type[IntEnum]) -> _Wire:
    members = {int(each): each for each in of}
    return _Wire(of=int, what=f"the number of a {of.__name__}", members=members, to_wire=int)


_OF_TYPE: Final = {
    "int": _Wire(of=int, what="an integer in [0, 2**63)", most=INT64_MAX, to_wire=int),
    "float": _Wire(of=float, what="a float", to_wire=float),
    "bool": _Wire(of=bool, what="a boolean", to_wire=bool),
    "str": _text(TEXT_CHARS_MAX, "a text"),
    "Role": _number(Role),
    "Verb": _number(Verb),
}
_OF_NAME: Final = {
    "contributors": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "present": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "lost": _bitmap(WORLD_SIZE_MAX, "ranks"),
    "absent": _bitmap(SEGMENTS_MAX, "segments"),
    "dtype": _name(*DTYPE_BYTES),
    "Push.dtype": _name(*DTYPE_BYTES, ENCODED),
    "field": _text(FIELD_CHARS_MAX, "a field's name"),
    "weight": _Wire(
        of=float, what="a finite weight of at least 0", most=sys.float_info.max, to_wire=float
    ),
    "hyper_hash": _text(_HASH_CHARS_MAX, "a hash"),
    "description_hash": _text(_HASH_CHARS_MAX, "a hash"),
}


class _Spec:
    """How one message type travels, derived from its dataclass."""

    def __init__(self, message_type: type[Message]) -> None:
        self.message_type = message_type
        self.name = message_type.__name__
        self.code = message_type.CODE
        self.payload_counts = _COUNTS[message_type.PAYLOAD]
        self.bytes_max = DATA_HEADER_BYTES_MAX if message_type.IS_DATA else CONTROL_HEADER_BYTES_MAX
        self.wires: dict[str, _Wire] = {}
        for entry in fields(message_type):
            known = _OF_NAME.get(f"{self.name}.{entry.name}") or _OF_NAME.get(entry.name)
            self.wires[entry.name] = known or _OF_TYPE[str(entry.type)]
        self.encoding = tuple((name, wire.to_wire) for name, wire in self.wires.items())
        self.checks: tuple[tuple[Any, ...], ...] = tuple(
            (name, wire.of, wire.most, wire.length_max, wire.members)
            for name, wire in self.wires.items()
        )


_SPEC_OF_TYPE: Final = {message_type: _Spec(message_type) for message_type in MESSAGE_TYPES}
_SPEC_OF_CODE: Final = {spec.code: spec for spec in _SPEC_OF_TYPE.values()}


def encode(message: Message) -> bytes:
    """Header bytes of a message. A message that its receiver would refuse is our own mistake."""
    spec = _SPEC_OF_TYPE[type(message)]
    values: list[object] = [spec.code]
    for name, to_wire in spec.encoding:
        value = getattr(message, name)
        if to_wire is None:
            values.append(value.to_bytes((value.bit_length() + 7) // 8, "little"))
        else:
            assert to_wire is not str or len(value) <= TEXT_CHARS_MAX, value
            values.append(to_wire(value))
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
    del values[0]
    if len(values) != len(spec.checks):
        raise RemoteProtocolError(
            f"{spec.name} has {len(values)} fields, expected {len(spec.checks)}"
        )
    if payload_count not in spec.payload_counts:
        raise RemoteProtocolError(
            f"{spec.name} came with {payload_count} payload frames, "
            f"expected {' or '.join(map(str, spec.payload_counts))}"
        )
    return spec.message_type(**_checked(spec, values))


def _checked(spec: _Spec, values: list[Any]) -> dict[str, Any]:
    """The fields of a message by name, each checked. Raises RemoteProtocolError."""
    taken = {}
    for (name, of, most, length_max, members), value in zip(spec.checks, values, strict=True):
        if (
            type(value) is not of
            or (most is not None and not 0 <= value <= most)
            or (length_max is not None and len(value) > length_max)
            or (members is not None and value not in members)
            or (of is bytes and value[-1:] == b"\0")
        ):
            raise RemoteProtocolError(
                f"{spec.name}.{name}: {_shown(value)} is not {spec.wires[name].what}"
            )
        if of is bytes:
            taken[name] = int.from_bytes(value, "little")
        else:
            taken[name] = value if members is None else members[value]
    return taken


def _shown(value: object) -> str:
    """A peer's value for a message; the repr of a deeply nested list would raise RecursionError."""
    return type(value).__name__ if isinstance(value, list | dict) else f"{value!r:.40}"
