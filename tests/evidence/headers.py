"""Golden headers: the exact bytes of every message, and what every field of a header refuses.

    headers.jsonl     one line a case: message, case, fields, header in hexadecimal. A text that is
                      one character many times stands as [character, count].
    refusals.txt      one line for each field of each header on the wire: which of `VALUES` it takes

Both were written by `python -m tests.evidence headers` and are checked by
`test_evidence_headers.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

import msgpack

from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import (
    CLIPS_MAX,
    FIELD_CHARS_MAX,
    SEGMENTS_MAX,
    TEXT_CHARS_MAX,
    WORLD_SIZE_MAX,
)
from luwu.wire.codec import decode, encode
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule, Role, Verb

HEADERS: Final = Path(__file__).parent / "headers.jsonl"
REFUSALS: Final = Path(__file__).parent / "refusals.txt"

_BITMAPS: Final = {
    "contributors": WORLD_SIZE_MAX, "present": WORLD_SIZE_MAX, "lost": WORLD_SIZE_MAX,
    "absent": SEGMENTS_MAX,
}  # fmt: skip
_STEPS: Final = (0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)
"""Where msgpack takes another form of an integer."""
_NORMS: Final = "tuple[float, ...]"
_LONGEST: Final = "\U0001f600"
_FLOATS: Final = (5e-324, 1.7976931348623157e308, 0.1, -0.0)

VALUES: Final[tuple[Any, ...]] = (
    0, 1, 5, 7, 2**62, 2**63 - 1, 2**63, -1, True, False, None, 0.0, -0.0, 1.5, -1.5,
    float("inf"), float("-inf"), float("nan"), "", "x", "float32", "bfloat16", ENCODED, "int8",
    "x" * 64, "x" * 65, "x" * 940, "x" * 941, b"", b"\0", b"\1", b"\1\0", b"\1" * 128, b"\1" * 129,
    b"\1" * 512, b"\1" * 513, [], [1], [1.0], [0.5] * (CLIPS_MAX + 2), [0.5] * (CLIPS_MAX + 3), {},
    {1: 2},
)  # fmt: skip
"""What stands in the place of a field, by turns."""


Values = Callable[[int], dict[str, Any]]
"""Number of a field -> its value, by its name or its type."""


def cases() -> Iterator[tuple[str, Message]]:
    """(name of the case, message) for every message of the protocol."""
    for kind in MESSAGE_TYPES:
        yield "least", _made(kind, _least)
        yield "usual", _made(kind, _usual)
        yield "greatest", _made(kind, _greatest)
        for start in range(0, len(_STEPS), 3):
            yield f"forms {start}", _made(kind, lambda index, s=start: _form(index + s))
        optional = {each.name for each in fields(kind) if each.default is not MISSING}
        if optional:
            yield "without optional fields", _made(kind, _usual, left_out=optional)


def _made(kind: type[Message], values: Values, left_out: Collection[str] = ()) -> Message:
    """A message whose fields have these values: by name, or by type."""
    given = {}
    for index, each in enumerate(fields(kind)):
        found = values(index)
        if each.name not in left_out:
            given[each.name] = found[each.name if each.name in found else str(each.type)]
    return kind(**given)


def _least(index: int) -> dict[str, Any]:
    return {
        "dtype": "float32", "int": 0, "float": 0.0, "bool": False, "str": "", _NORMS: (0.0,),
        "Role": Role.WORKER, "Verb": Verb.LOAD,
    }  # fmt: skip


def _usual(index: int) -> dict[str, Any]:
    return {
        "dtype": "bfloat16", "int": index + 1, "float": index + 0.5, "bool": True,
        "str": f"text {index}", _NORMS: (index + 0.5, 0.25), "Role": Role.SWITCH, "Verb": Verb.PUSH,
    }  # fmt: skip


def _greatest(index: int) -> dict[str, Any]:
    short = _LONGEST * FIELD_CHARS_MAX
    return {
        "dtype": "bfloat16", "int": 2**63 - 1, "float": _FLOATS[1], "bool": True,
        "str": _LONGEST * TEXT_CHARS_MAX, "field": short, "description_hash": short,
        _NORMS: (_FLOATS[1],) * (CLIPS_MAX + 2), "Role": Role.NODE, "Verb": Verb.PRESENT,
        **{name: (1 << count) - 1 for name, count in _BITMAPS.items()},
    }  # fmt: skip


def _form(index: int) -> dict[str, Any]:
    return {
        "dtype": "float16", "int": _STEPS[index % len(_STEPS)], "float": _FLOATS[index % 3],
        "bool": index % 2 == 0, "str": "é" * (31 + index % 2), _NORMS: _FLOATS[: 1 + index % 3],
        "Role": list(Role)[index % len(Role)], "Verb": list(Verb)[index % len(Verb)],
    }  # fmt: skip


def headers_text() -> str:
    """What `headers.jsonl` holds."""
    lines = []
    for case, message in cases():
        given = {each.name: _shown(getattr(message, each.name)) for each in fields(message)}
        line = {
            "message": type(message).__name__, "case": case, "fields": given,
            "header": encode(message).hex(),
        }  # fmt: skip
        lines.append(json.dumps(line, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 40 and len(set(value)) == 1:
        return [value[0], len(value)]
    return value


def value_of(shown: Any) -> Any:
    """A field as it stands in `headers.jsonl`."""
    if not isinstance(shown, list):
        return shown
    return shown[0] * shown[1] if isinstance(shown[0], str) else tuple(shown)


# ---------------------------------------------------------------------- refusals


def refusals_text() -> str:
    """What `refusals.txt` holds."""
    lines = [f"# {index}: {_brief(value)}" for index, value in enumerate(VALUES)]
    for kind in MESSAGE_TYPES:
        usual = _made(kind, _usual)
        values = msgpack.unpackb(encode(usual))
        count = 0 if kind.PAYLOAD is PayloadRule.NONE else 1
        names = ["code", *(each.name for each in fields(kind))]
        for index, name in enumerate(names):
            headers = [[*values[:index], value, *values[index + 1 :]] for value in VALUES]
            taken = "".join("x" if is_refused(msgpack.packb(h), count) else "." for h in headers)
            lines.append(f"{kind.CODE} {index} {taken}  {kind.__name__}.{name}")
        counts = "".join("x" if is_refused(encode(usual), n) else "." for n in range(3))
        lengths = "".join(
            "x" if is_refused(msgpack.packb(each), count) else "."
            for each in (values[:-1], values, [*values, 0])
        )
        lines.append(f"{kind.CODE} payloads {counts}  {kind.__name__} with 0, 1 or 2 frames")
        lines.append(f"{kind.CODE} lengths {lengths}  {kind.__name__} short, whole or long")
    return "\n".join(lines) + "\n"


def is_refused(header: bytes, payload_count: int) -> bool:
    """Whether a peer's header is refused; anything but a refusal is an error of ours."""
    try:
        decode(header, payload_count)
    except RemoteProtocolError:
        return True
    return False


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:12]}... of {len(value)}"


def write_headers() -> None:
    """Write both files, from the protocol of today."""
    HEADERS.write_text(headers_text())
    REFUSALS.write_text(refusals_text())
