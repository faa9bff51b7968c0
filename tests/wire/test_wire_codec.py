"""Messages to bytes and back: golden bytes, round trips, and whatever a hostile peer may send."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from luwu.wire.codec import decode, encode
from luwu.wire.messages import (
    MESSAGE_TYPES,
    Abort,
    Adopt,
    Agreed,
    Begin,
    Cancel,
    Commit,
    Content,
    Copy,
    Decided,
    Gone,
    Hello,
    Keep,
    Leave,
    Load,
    Measured,
    Message,
    Open,
    Opened,
    Page,
    PayloadRule,
    Prepared,
    Present,
    Propose,
    Pull,
    Push,
    Read,
    Received,
    Refuse,
    Rejoin,
    Resolved,
    Role,
    Shut,
    Standing,
    Verb,
    Verdict,
    Weights,
    Welcome,
)

FIXED = settings(derandomize=True, deadline=None, max_examples=60)
"""The same examples in every run; a failure prints its own."""

_COMMON: dict[str, Any] = {
    "job": 1, "epoch": 2, "step": 3, "attempt": 4, "role": Role.WORKER, "rank": 5,
    "incarnation": 6, "generation": 7,
}  # fmt: skip
_DATA: dict[str, Any] = {**_COMMON, "index": 8, "part": 9}

GOLDEN: list[tuple[Message, str]] = [
    (Load(**_DATA), "9b 01 01 02 03 04 01 05 06 07 08 09"),
    (
        Push(
            **_DATA,
            contributors=0b101,
            absent=0b10,
            weight=1.5,
            last=True,
            raw=False,
            dtype="bfloat16",
        ),
        "dc 00 11 02 01 02 03 04 01 05 06 07 08 09 c4 01 05 c4 01 02 cb 3f f8 00 00 00 00 00 00 c3"
        " c2 a8 62 66 6c 6f 61 74 31 36",
    ),
    (Pull(**_DATA, count=5), "9c 03 01 02 03 04 01 05 06 07 08 09 05"),
    (
        Weights(**_DATA, dtype="float32", in_place=True, checksum=300),
        "9e 04 01 02 03 04 01 05 06 07 08 09 a7 66 6c 6f 61 74 33 32 c3 cd 01 2c",
    ),
    (
        Received(**_DATA, verb=Verb.PUSH, contributors=1 << 9),
        "9d 05 01 02 03 04 01 05 06 07 08 09 03 c4 02 00 02",
    ),
    (
        Hello(
            **_COMMON,
            protocol=1,
            world_size=2,
            contributors=3,
            present=2,
            roll=9,
            description_hash="ab",
            extent_chunks=4,
        ),
        "dc 00 10 10 01 02 03 04 01 05 06 07 01 02 c4 01 03 c4 01 02 09 a2 61 62 04",
    ),
    (
        Welcome(
            **_COMMON,
            contributors=3,
            loaded=True,
            push_window_bytes=65536,
            began_with_skip=True,
            skipped_step=3,
            norms=(2.0,),
            redoes=True,
        ),
        "dc 00 10 11 01 02 03 04 01 05 06 07 c4 01 03 c3 ce 00 01 00 00 c3 03 91 cb 40 00 00 00 00 "
        "00 00 00 c3",
    ),
    (
        Refuse(**_COMMON, text="no", is_older=True, is_left_out=False),
        "9c 12 01 02 03 04 01 05 06 07 a2 6e 6f c3 c2",
    ),
    (Rejoin(**_COMMON), "99 13 01 02 03 04 01 05 06 07"),
    (
        Begin(**_COMMON, contributors=1),
        "9a 14 01 02 03 04 01 05 06 07 c4 01 01",
    ),
    (
        Commit(**_COMMON, contributors=1, parts=2, skip=True, held=4),
        "9d 15 01 02 03 04 01 05 06 07 c4 01 01 02 c3 04",
    ),
    (
        Verdict(**_COMMON, applied=False, norms=(math.inf,)),
        "9b 16 01 02 03 04 01 05 06 07 c2 91 cb 7f f0 00 00 00 00 00 00",
    ),
    (
        Decided(**_COMMON, applied=True, norms=(0.5,)),
        "9b 17 01 02 03 04 01 05 06 07 c3 91 cb 3f e0 00 00 00 00 00 00",
    ),
    (
        Cancel(**_COMMON, lost=2, text="stop"),
        "9b 18 01 02 03 04 01 05 06 07 c4 01 02 a4 73 74 6f 70",
    ),
    (
        Abort(**_COMMON, contributors=1, loaded=False, text="gone", redoes=True),
        "9d 19 01 02 03 04 01 05 06 07 c4 01 01 c2 a4 67 6f 6e 65 c3",
    ),
    (Present(**_COMMON, contributors=1, roll=3), "9b 22 01 02 03 04 01 05 06 07 c4 01 01 03"),
    (Leave(**_COMMON, contributors=3), "9a 1a 01 02 03 04 01 05 06 07 c4 01 03"),
    (
        Read(**_DATA, reader=11, field="m", dtype="float32"),
        "9e 06 01 02 03 04 01 05 06 07 08 09 0b a1 6d a7 66 6c 6f 61 74 33 32",
    ),
    (
        Content(**_DATA, reader=11, field="m", dtype="float32"),
        "9e 07 01 02 03 04 01 05 06 07 08 09 0b a1 6d a7 66 6c 6f 61 74 33 32",
    ),
    (
        Keep(**_DATA, contributors=2, pieces=3),
        "9d 08 01 02 03 04 01 05 06 07 08 09 c4 01 02 03",
    ),
    (Propose(**_DATA, contributors=2), "9c 09 01 02 03 04 01 05 06 07 08 09 c4 01 02"),
    (Agreed(**_DATA), "9b 0a 01 02 03 04 01 05 06 07 08 09"),
    (Open(**_COMMON, reader=11), "9a 1b 01 02 03 04 01 05 06 07 0b"),
    (Opened(**_COMMON, reader=11), "9a 1c 01 02 03 04 01 05 06 07 0b"),
    (Shut(**_COMMON, reader=11), "9a 1d 01 02 03 04 01 05 06 07 0b"),
    (Gone(**_COMMON, reader=11, text="gone"), "9b 1e 01 02 03 04 01 05 06 07 0b a4 67 6f 6e 65"),
    (Measured(**_COMMON), "99 1f 01 02 03 04 01 05 06 07"),
    (Prepared(**_COMMON, version=12), "9a 20 01 02 03 04 01 05 06 07 0c"),
    (Resolved(**_COMMON, version=12), "9a 21 01 02 03 04 01 05 06 07 0c"),
    (
        Standing(
            **_COMMON,
            members=6,
            loaded=True,
            is_prepared=True,
            prepared_attempt=3,
            redoes=False,
        ),
        "9e 23 01 02 03 04 01 05 06 07 06 c3 c3 03 c2",
    ),
    (
        Adopt(**_COMMON, members=6, contributors=3, loaded=True, text="why", filling=9),
        "9e 24 01 02 03 04 01 05 06 07 06 c4 01 03 c3 a3 77 68 79 09",
    ),
    (Copy(**_DATA), "9b 25 01 02 03 04 01 05 06 07 08 09"),
    (Page(**_DATA), "9b 26 01 02 03 04 01 05 06 07 08 09"),
]
EXAMPLES = {type(message): message for message, _ in GOLDEN}

_PAYLOADS = {PayloadRule.NONE: [0], PayloadRule.ONE: [1], PayloadRule.OPTIONAL: [0, 1]}

_HEX = "0123456789abcdef"
_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(0, INT64_MAX),
    "float": st.floats(),
    "tuple[float, ...]": st.lists(st.floats(), min_size=1, max_size=CLIPS_MAX + 2).map(tuple),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=TEXT_CHARS_MAX),
    "Role": st.sampled_from(Role),
    "Verb": st.sampled_from(Verb),
    "contributors": st.integers(0, 2**WORLD_SIZE_MAX - 1),
    "present": st.integers(0, 2**WORLD_SIZE_MAX - 1),
    "lost": st.integers(0, 2**WORLD_SIZE_MAX - 1),
    "weight": st.floats(0, allow_nan=False, allow_infinity=False),
    "dtype": st.sampled_from(sorted(WIRE_DTYPES)),
    "field": st.text(st.characters(exclude_categories=("Cs",)), max_size=FIELD_CHARS_MAX),
    "description_hash": st.text(_HEX, max_size=64),
}


def messages(message_type: type[Message]) -> st.SearchStrategy[Message]:
    """Any legal message of a type."""
    chosen = {
        entry.name: _STRATEGIES[entry.name if entry.name in _STRATEGIES else str(entry.type)]
        for entry in fields(message_type)
    }
    if message_type is Push:
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


def decode_or_refuse(header: bytes, payload_count: int) -> Message | None:
    try:
        return decode(header, payload_count)
    except RemoteProtocolError:
        return None


@pytest.mark.parametrize(
    ("message", "expected"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN]
)
def test_golden_bytes(message: Message, expected: str) -> None:
    """Goal: no change of the protocol by accident; one on purpose raises PROTOCOL_VERSION."""
    header = bytes.fromhex(expected)
    assert encode(message).hex(" ") == expected
    for count in _PAYLOADS[message.PAYLOAD]:
        assert decode(header, count) == message
        assert decode(memoryview(header), count) == message


def test_every_type_has_golden_bytes_and_its_own_code() -> None:
    """Goal: a new message type cannot be forgotten above, nor reuse a code."""
    assert set(EXAMPLES) == set(MESSAGE_TYPES)
    assert len({message_type.CODE for message_type in MESSAGE_TYPES}) == len(MESSAGE_TYPES)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_round_trip(message_type: type[Message]) -> None:
    """Goal: every legal message arrives as it was sent, and its header stays within the caps.
    NaN and infinity are legal floats: the norm of a skipped step is one of them."""
    cap = DATA_HEADER_BYTES_MAX if message_type.IS_DATA else CONTROL_HEADER_BYTES_MAX

    @FIXED
    @given(message=messages(message_type))
    def check(message: Message) -> None:
        header = encode(message)
        assert len(header) <= cap
        for count in _PAYLOADS[message.PAYLOAD]:
            arrived = decode(header, count)
            assert type(arrived) is message_type
            assert repr(arrived) == repr(message)  # repr: a NaN equals nothing
            assert encode(arrived) == header

    check()


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_largest_message_fits_its_cap(message_type: type[Message]) -> None:
    """I5. Goal: no legal message is too large to be sent. Method: every field at its longest."""
    longest = {
        "int": INT64_MAX, "float": 1 / 3, "bool": True, "str": "\U0001f600" * TEXT_CHARS_MAX,
        "Role": Role.NODE, "Verb": Verb.LEAVE, "contributors": 2**WORLD_SIZE_MAX - 1,
        "dtype": "bfloat16", "field": "\U0001f600" * FIELD_CHARS_MAX,
        "description_hash": "f" * 64, "norms": (1 / 3,) * (CLIPS_MAX + 2),
    }  # fmt: skip
    chosen = {
        entry.name: longest[entry.name if entry.name in longest else str(entry.type)]
        for entry in fields(message_type)
    }
    message = message_type(**chosen)
    cap = DATA_HEADER_BYTES_MAX if message_type.IS_DATA else CONTROL_HEADER_BYTES_MAX
    header = encode(message)
    assert len(header) <= cap
    assert decode(header, _PAYLOADS[message.PAYLOAD][0]) == message


@pytest.mark.parametrize("message_type", [Weights, Read, Content], ids=by_name)
def test_only_gradients_are_encoded(message_type: type[Message]) -> None:
    """Goal: weights and pages have a dtype; what an aggregator makes is none."""
    example = EXAMPLES[message_type]
    values = [ENCODED if v == "float32" else v for v in wire_values(example)]
    refusal = refuses(msgpack.packb(values), _PAYLOADS[example.PAYLOAD][0])
    assert "dtype: 'encoded' is not one of" in refusal


def test_own_mistakes_are_assertions() -> None:
    """Goal: a text that its receiver would refuse is found where it is written."""
    with pytest.raises(AssertionError):
        encode(Refuse(**_COMMON, text="x" * (TEXT_CHARS_MAX + 1)))


@settings(FIXED, max_examples=500)
@given(header=st.binary(max_size=80), payload_count=st.integers(-1, 3))
def test_random_bytes(header: bytes, payload_count: int) -> None:
    """Goal: bytes that mean nothing are refused, never anything worse."""
    decode_or_refuse(header, payload_count)


@pytest.mark.parametrize("seed", range(4))
def test_random_lists(seed: int) -> None:
    """Goal: well-formed msgpack of the wrong things is refused. Method: a known code, then values
    drawn from a few of every kind."""
    rng = random.Random(seed)
    kinds: list[Any] = [
        0, 1, -1, 2**63, 2**64 - 1, 0.5, math.nan, True, None, "", "float32", b"", b"\1", b"\1\0",
        [], [[]], {}, msgpack.ExtType(5, b""), "x" * 200, b"\1" * 129,
    ]  # fmt: skip
    for _ in range(1000):
        message_type = rng.choice(MESSAGE_TYPES)
        count = len(fields(message_type)) + rng.choice([0, 0, 0, 0, 1, -1])
        values = [message_type.CODE, *(rng.choice(kinds) for _ in range(count))]
        message = decode_or_refuse(msgpack.packb(values), rng.randrange(3))
        assert message is None or type(message) is message_type


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_truncated_and_longer(message_type: type[Message]) -> None:
    """Goal: no prefix of a header is one, and nothing may follow it."""
    message = EXAMPLES[message_type]
    header, count = encode(message), _PAYLOADS[message.PAYLOAD][0]
    for size in range(len(header)):
        assert "not msgpack" in refuses(header[:size], count)
    for tail in (b"\0", header, b"\xc1"):
        assert "not msgpack" in refuses(header + tail, count)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_flipped_bits(message_type: type[Message]) -> None:
    """Goal: a damaged header is refused or is another legal message; nothing else can happen.
    Method: every single bit, and seeded pairs of bits."""
    message = EXAMPLES[message_type]
    header, count = encode(message), _PAYLOADS[message.PAYLOAD][0]
    rng = random.Random(message_type.CODE)
    singles = [[bit] for bit in range(8 * len(header))]
    pairs = [rng.sample(range(8 * len(header)), 2) for _ in range(300)]
    for bits in singles + pairs:
        damaged = bytearray(header)
        for bit in bits:
            damaged[bit // 8] ^= 1 << bit % 8
        found = decode_or_refuse(bytes(damaged), count)
        if found is not None:
            encode(found)


@pytest.mark.parametrize("depth", [1, 31, 500, 990, 1000, 1015, 1023, 1024, 2000, 4000])
def test_nested_bombs(depth: int) -> None:
    """Goal: nesting, however deep, is refused; also by the text that reports it."""
    bomb = b"\x91" * depth + b"\xc0"
    for header in (bomb, b"\x99\x13" + bomb + b"\x01" * 7, b"\x99\x13" + b"\x01" * 7 + bomb):
        refuses(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc0",
        b"\x13",
        b"\x90",
        b"\x91\xc3",  # True is not the code 1
        b"\x91\xa1\x13",
        b"\xdd\xff\xff\xff\xff\x13",  # an array that promises four billion entries
        b"\xdb\xff\xff\xff\xff\x13",
        b"\xc6\xff\xff\xff\xff\x13",
        b"\xdf\xff\xff\xff\xff\x13",
        b"\xc9\xff\xff\xff\xff\x13",
        b"\x99\x13\x81\x01\x01" + b"\x01" * 7,  # a map with an entry
        b"\x99\x13\xd6\xff\0\0\0\0" + b"\x01" * 7,  # a timestamp
        b"\x99\x13\xa1\xff" + b"\x01" * 7,  # not UTF-8
        b"\x99\x13\xa3\xed\xa0\x80" + b"\x01" * 7,  # half a character
    ],
)
def test_odd_headers(header: bytes) -> None:
    """Goal: what is not a list that starts with a code is refused without holding what it claims
    to hold."""
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
_WRONG_BITMAPS = [*_NO_BITMAPS, b"\1" * (WORLD_SIZE_MAX // 8 + 1)]
_WRONG: dict[str, list[Any]] = {
    "int": [-1, -(2**63), 2**63, 2**64 - 1, 1.0, True, None, "1", b"\1", [1]],
    "float": [1, 0, True, None, "1.0", [1.0]],
    "tuple[float, ...]": [[], [1], [1.0, None], 1.0, None, [1.0] * (CLIPS_MAX + 3), [[1.0]]],
    "bool": [0, 1, None, "true", 1.0],
    "str": [1, None, b"text", "x" * (TEXT_CHARS_MAX + 1), ["text"]],
    "Role": [0, 5, -1, 1.0, True, None, "WORKER"],
    "Verb": [0, 9, -1, 2**63, True, None],
    "contributors": _WRONG_BITMAPS,
    "present": _WRONG_BITMAPS,
    "lost": _WRONG_BITMAPS,
    "absent": [*_NO_BITMAPS, b"\1" * (SEGMENTS_MAX // 8 + 1)],
    "field": [1, None, b"weight", "x" * (FIELD_CHARS_MAX + 1)],
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
            too_big = size > (DATA_HEADER_BYTES_MAX if message.IS_DATA else 2**63)
            unread = "not msgpack" in text  # msgpack itself refused a long binary
            assert f"{message_type.__name__}.{entry.name}: " in text or too_big or unread


def test_caps_hold() -> None:
    """I5. Goal: a header above its cap is refused before it is read. Method: legal but wordy
    spellings of the same numbers make it longer."""
    over = CONTROL_HEADER_BYTES_MAX + 1
    assert f"header of {over} bytes, at most" in refuses(b"\x13" * over)
    pull = [3, 1, 2, 3, 4, 1, 5, 6, 7, 8, "x" * DATA_HEADER_BYTES_MAX]
    assert "Pull header of " in refuses(msgpack.packb(pull))


def test_wordy_integers_are_legal() -> None:
    """Goal: documented: an integer may be spelled longer than needed; it is the same message."""
    wordy = b"\x99\x13" + b"".join(b"\xcf" + bytes([0] * 7 + [i]) for i in (1, 2, 3, 4, 1, 5, 6, 7))
    assert decode(wordy, 0) == EXAMPLES[Rejoin]


def test_bitmap_bounds() -> None:
    """Goal: the empty set and the set of all ranks travel; one more rank does not."""
    leave = EXAMPLES[Leave]
    assert isinstance(leave, Leave)
    for contributors in (0, 1, 2**WORLD_SIZE_MAX - 1, 1 << WORLD_SIZE_MAX - 1):
        sent = replace(leave, contributors=contributors)
        assert decode(encode(sent), 0) == sent
    values = msgpack.unpackb(encode(leave))
    values[9] = bytes(WORLD_SIZE_MAX // 8) + b"\1"
    refuses(msgpack.packb(values))


@pytest.mark.parametrize(
    "wrong", [{"epoch": 2**63}, {"attempt": -1}, {"contributors": 1 << WORLD_SIZE_MAX}]
)
def test_what_a_receiver_would_refuse_is_not_encoded(wrong: dict[str, int]) -> None:
    """Goal: a number that every peer would refuse fails where it is sent, not over there."""
    with pytest.raises(AssertionError):
        encode(replace(EXAMPLES[Leave], **wrong))
