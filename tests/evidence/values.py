"""What crosses a core's boundary as plain values, and back.

    in a core           in a record
    None, bool, float,  the same; an int beyond 63 bits: {"int": hexadecimal}
    int, str, bytes
    tuple, list         list
    mapping             {"map": [[key, value], ...]}
    message             {"m": header bytes}
    payload             {"p": number}; the first time {"p": [number, digest]}
    action              {name: [fields]}, in the order that the record's schema gives
    action, answered    {"a": how many actions that ask for something came before it}
    other value         {name: [fields]}, as an action
    aggregator          {"aggregator": [spec, world size]}

A core never looks into a payload, so its number stands for it: that of its first appearance at this
core. `Coder` belongs to one core, and knows what was numbered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from luwu.aggregate import Aggregator
from luwu.base.errors import RemoteProtocolError
from luwu.protocol.actions import Note
from luwu.wire.codec import decode, encode
from luwu.wire.messages import Message
from tests.evidence import adapter

Schema = dict[str, list[str]]
"""Fields of each type, by its name in the records."""

_DIGEST_BYTES = 4
"""Of payloads: enough to see a change, not to resist an attacker."""


class Opaque:
    """In a replay: a payload of which nothing but the number is known."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"payload {self.number}"


def _names_of(value: Any) -> list[str]:
    """Of a dataclass or a named tuple."""
    if isinstance(value, tuple):
        return list(value._fields)  # type: ignore[attr-defined]
    return [each.name for each in fields(value)]


class Coder:
    """See the module. `schema` grows with what is encoded."""

    def __init__(self, schema: Schema, digest: Callable[[Any], bytes] | None = None) -> None:
        """`digest`: of a payload that is seen for the first time."""
        self._schema, self._digest = schema, digest
        self._payloads: dict[int, tuple[int, Any]] = {}
        """id -> (number, the payload): so that no id comes back."""
        self._opaque: dict[int, Opaque] = {}
        self._asked: list[Any] = []
        self._asked_at: dict[int, int] = {}

    # ---------------------------------------------------------------------- out of a core

    def answered(self, actions: Any) -> list[Any]:
        """Actions that a core returned."""
        found = []
        for action in actions:
            found.append(self._fields(action))
            if adapter.NAME_OF_TYPE[type(action)] not in adapter.UNASKED:
                self._asked_at[id(action)] = len(self._asked)
                self._asked.append(action)
        return found

    def encode(self, value: Any) -> Any:
        """A value as it stands in a record."""
        if value is None or isinstance(value, bool | float | str | bytes):
            return value
        if isinstance(value, int):
            number = int(value)  # without the class of an enumeration
            return number if -(2**63) <= number < 2**63 else {"int": f"{number:x}"}
        if isinstance(value, Message):
            return {"m": encode(value)}
        if type(value) in adapter.NAME_OF_TYPE:
            pass  # below, though it may be a tuple with names
        elif isinstance(value, list | tuple | range):
            return [self.encode(each) for each in value]
        if isinstance(value, Mapping):
            return {"map": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if isinstance(value, Aggregator):
            return {"aggregator": [value.spec, value.world_size]}
        if id(value) in self._asked_at:
            return {"a": self._asked_at[id(value)]}
        if is_dataclass(value) or isinstance(value, tuple):
            return self._fields(value)
        return {"p": self._numbered(value)}

    def _fields(self, value: Any) -> dict[str, list[Any]]:
        name = adapter.NAME_OF_TYPE[type(value)]
        if isinstance(value, Note):
            value = adapter.noted(value)
        if name not in self._schema:
            self._schema[name] = _names_of(value)
        found = [getattr(value, adapter.field_of(name, each)) for each in self._schema[name]]
        return {name: [self.encode(each) for each in found]}

    def _numbered(self, payload: Any) -> Any:
        if isinstance(payload, Opaque):
            return payload.number
        known = self._payloads.get(id(payload))
        if known is not None:
            return known[0]
        number = len(self._payloads)
        self._payloads[id(payload)] = (number, payload)
        return number if self._digest is None else [number, self._digest(payload)]

    # ---------------------------------------------------------------------- into a core

    def decode(self, value: Any) -> Any:
        """A value of a record, for a core."""
        if isinstance(value, list):
            return tuple(self.decode(each) for each in value)
        if not isinstance(value, dict):
            return value
        [(name, inner)] = value.items()
        if name == "m":
            return message_of(inner)
        if name == "p":
            number = inner if isinstance(inner, int) else inner[0]
            return self._opaque.setdefault(number, Opaque(number))
        if name == "a":
            return self._asked[inner]
        if name == "int":
            return int(inner, 16)
        if name == "map":
            return {self.decode(key): self.decode(each) for key, each in inner}
        if name == "aggregator":
            return adapter.aggregator(*inner)
        names = [adapter.field_of(name, each) for each in self._schema[name]]
        values = [self.decode(each) for each in inner]
        return adapter.TYPE_OF_NAME[name](**dict(zip(names, values, strict=True)))


def message_of(header: bytes) -> Message:
    """The message of a header, with a payload or without."""
    try:
        return decode(header, 0)
    except RemoteProtocolError:
        return decode(header, 1)


def digest_of(payload: Any) -> bytes:
    """Of the bytes of a simulated payload; empty for others, which may not be read when we wish."""
    array = getattr(payload, "array", None)
    if array is None:
        return b""
    return hashlib.blake2b(array.tobytes(), digest_size=_DIGEST_BYTES).digest()
