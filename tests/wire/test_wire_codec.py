"""Messages to bytes and back: round trips, and what is refused, by name.

Golden bytes: `tests/evidence/headers.py`. Bytes that mean nothing: `tests/fuzz/headers.py`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luwu.aggregate.interface import ENCODED
from luwu.base import limits
from luwu.base.dtypes import WIRE_DTYPES
from luwu.base.errors import RemoteProtocolError
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule, Role, Verb
from tests.evidence.headers import cases

FIXED = settings(derandomize=True, deadline=None, max_examples=60)
"""The same examples in every run; a failure prints its own."""

EXAMPLES = {type(message): message for case, message in cases() if case == "usual"}

_PAYLOADS = {PayloadRule.NONE: [0], PayloadRule.ONE: [1], PayloadRule.OPTIONAL: [0, 1]}

_HEX = "0123456789abcdef"
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(0, limits.INT64_MAX),
    "float": st.floats(),
    "tuple[float, ...]": st.lists(st.floats(), min_size=1, max_size=limits.CLIPS_MAX + 2).map(
        tuple
    ),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=limits.TEXT_CHARS_MAX),
    "Role": st.sampled_from(Role),
    "Verb": st.sampled_from(Verb),
    "contributors": st.integers(0, 2**limits.WORLD_SIZE_MAX - 1),
    "present": st.integers(0, 2**limits.WORLD_SIZE_MAX - 1),
    "lost": st.integers(0, 2**limits.WORLD_SIZE_MAX - 1),
    "weight": st.floats(0, allow_nan=False, allow_infinity=False),
    "dtype": st.sampled_from(sorted(WIRE_DTYPES)),
    "field": st.text(st.characters(exclude_categories=("Cs",)), max_size=limits.FIELD_CHARS_MAX),
    "description_hash": st.text(_HEX, max_size=64),
}


def messages(message_type: type[Message]) -> st.SearchStrategy[Message]:
    """Any legal message of a type."""
    chosen = {
        entry.name: _STRATEGIES[entry.name if entry.name in _STRATEGIES else str(entry.type)]
        for entry in fields(message_type)
    }
    if message_type is wire.Push:
        chosen["dtype"] = st.sampled_from([*sorted(WIRE_DTYPES), ENCODED])
    return st.builds(message_type, **chosen)


def by_name(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else ""


def wire_values(message: Message) -> list[Any]:
    """The list a header holds."""
    values: list[Any] = msgpack.unpackb(encode(message))
    return values


def refuses(header: bytes, payload_count: int = 0) -> str:
    """The text of the refusal; any other exception fails the test."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode(header, payload_count)
    return str(caught.value)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_round_trip(message_type: type[Message]) -> None:
    """Goal: every legal message arrives as it was sent, and its header stays within the caps.
    NaN and infinity are legal floats: the norm of a skipped step is one of them."""
    cap = limits.DATA_HEADER_BYTES_MAX if message_type.IS_DATA else limits.CONTROL_HEADER_BYTES_MAX

    @FIXED
    @given(message=messages(message_type))
    def check(message: Message) -> None:
        header = encode(message)
        assert len(header) <= cap
        for count, data in product(_PAYLOADS[message.PAYLOAD], (header, memoryview(header))):
            arrived = decode(data, count)
            assert type(arrived) is message_type
            assert repr(arrived) == repr(message)  # repr: a NaN equals nothing
            assert encode(arrived) == header

    check()


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_truncated_and_longer(message_type: type[Message]) -> None:
    """Goal: no prefix of a header is one, and nothing may follow it."""
    message = EXAMPLES[message_type]
    header, count = encode(message), _PAYLOADS[message.PAYLOAD][0]
    for size in range(len(header)):
        assert "not msgpack" in refuses(header[:size], count)
    for tail in (b"\0", header, b"\xc1"):
        assert "not msgpack" in refuses(header + tail, count)


@pytest.mark.parametrize("depth", [1, 31, 500, 990, 1000, 1015, 1023, 1024, 2000, 4000])
def test_nested_bombs(depth: int) -> None:
    """Goal: nesting, however deep, is refused; also by the text that reports it."""
    bomb = b"\x91" * depth + b"\xc0"
    for header in (bomb, b"\x99\x13" + bomb + b"\x01" * 7, b"\x99\x13" + b"\x01" * 7 + bomb):
        refuses(header)


def test_unknown_code() -> None:
    """Goal: a code of a later protocol is named."""
    used = {message_type.CODE for message_type in MESSAGE_TYPES}
    for code in (*(set(range(64)) - used), -1, 2**63, 2**64 - 1):
        assert f"code {code} is unknown" in refuses(msgpack.packb([code, 1, 2]))


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_wrong_counts(message_type: type[Message]) -> None:
    """Goal: one field or one frame too many or too few is refused, with both numbers."""
    message = EXAMPLES[message_type]
    values, allowed = wire_values(message), _PAYLOADS[message.PAYLOAD]
    for wrong in (values[:-1], [*values, 0], values[:1]):
        text = refuses(msgpack.packb(wrong), allowed[0])
        assert f"{len(wrong) - 1} fields, expected {len(values) - 1}" in text
    for count in {-1, 0, 1, 2, 100} - set(allowed):
        text = refuses(encode(message), count)
        assert f"{message_type.__name__} came with {count} payload frames" in text


_NO_BITMAPS: list[Any] = [1, "\1", None, b"\0", b"\1\0", [b"\1"]]
_WRONG_BITMAPS = [*_NO_BITMAPS, b"\1" * (limits.WORLD_SIZE_MAX // 8 + 1)]
_WRONG: dict[str, list[Any]] = {
    "int": [-1, -(2**63), 2**63, 2**64 - 1, 1.0, True, None, "1", b"\1", [1]],
    "float": [1, 0, True, None, "1.0", [1.0]],
    "tuple[float, ...]": [[], [1], [1.0, None], 1.0, None, [1.0] * (limits.CLIPS_MAX + 3), [[1.0]]],
    "bool": [0, 1, None, "true", 1.0],
    "str": [1, None, b"text", "x" * (limits.TEXT_CHARS_MAX + 1), ["text"]],
    "Role": [0, 5, -1, 1.0, True, None, "WORKER"],
    "Verb": [0, 9, -1, 2**63, True, None],
    "contributors": _WRONG_BITMAPS,
    "present": _WRONG_BITMAPS,
    "lost": _WRONG_BITMAPS,
    "absent": [*_NO_BITMAPS, b"\1" * (limits.SEGMENTS_MAX // 8 + 1)],
    "field": [1, None, b"weight", "x" * (limits.FIELD_CHARS_MAX + 1)],
    "dtype": ["", "float64", "int8", "FLOAT32", 1, None, b"float32", "x" * 200],
    "description_hash": ["0" * 65, 1, None, b"ab"],
}


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_wrong_values_name_the_field(message_type: type[Message]) -> None:
    """Goal: each field refuses each value that is not its own: other types (True is no integer, 1
    no float), out of range, a bitmap with a zero at its end (two spellings of one set)."""
    message = EXAMPLES[message_type]
    count = _PAYLOADS[message.PAYLOAD][0]
    for index, entry in enumerate(fields(message_type), start=1):
        for wrong in _WRONG.get(entry.name) or _WRONG[str(entry.type)]:
            values = wire_values(message)
            values[index] = wrong
            text = refuses(msgpack.packb(values), count)
            size = len(msgpack.packb(values))
            too_big = size > (limits.DATA_HEADER_BYTES_MAX if message.IS_DATA else 2**63)
            unread = "not msgpack" in text  # msgpack itself refused a long binary
            assert f"{message_type.__name__}.{entry.name}: " in text or too_big or unread


def test_caps_hold() -> None:
    """I5. Goal: a header above its cap is refused before it is read. Method: legal but wordy
    spellings of the same numbers make it longer."""
    over = limits.CONTROL_HEADER_BYTES_MAX + 1
    assert f"header of {over} bytes, at most" in refuses(b"\x13" * over)
    pull = [3, 1, 2, 3, 4, 1, 5, 6, 7, 8, "x" * limits.DATA_HEADER_BYTES_MAX]
    assert "Pull header of " in refuses(msgpack.packb(pull))


def test_wordy_integers_are_legal() -> None:
    """Goal: documented: an integer may be spelled longer than needed; it is the same message."""
    wordy = b"\x99\x13" + b"".join(b"\xcf" + bytes([0] * 7 + [i]) for i in (1, 2, 3, 4, 3, 6, 7, 8))
    assert decode(wordy, 0) == EXAMPLES[wire.Rejoin]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (wire.Leave, {"epoch": 2**63}), (wire.Leave, {"attempt": -1}),
        (wire.Leave, {"contributors": 1 << limits.WORLD_SIZE_MAX}),
        (wire.Refuse, {"text": "x" * (limits.TEXT_CHARS_MAX + 1)}),
    ],
)  # fmt: skip
def test_what_a_receiver_would_refuse_is_not_encoded(
    kind: type[Message], wrong: dict[str, Any]
) -> None:
    """Goal: a value that every peer would refuse fails where it is sent, not over there."""
    with pytest.raises(AssertionError):
        encode(replace(EXAMPLES[kind], **wrong))
