"""The job's description: one spelling, one hash, differences for people, hostile ones refused."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import CHUNK_BYTES_STEP, INT64_MAX
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import (
    DIFFERENCES_SHOWN_MAX,
    DIMENSIONS_MAX,
    Description,
    description_hash,
    differences,
    parse_description,
)
from tests.wire.test_layout import layouts

FIXED = settings(derandomize=True, deadline=None, max_examples=80)


def small(**changes: Any) -> Description:
    """Two units, three parameters."""
    layout = Layout(
        parameters=(
            Parameter(name="wte", shape=(256, 64)),
            Parameter(name="w", shape=(64, 64), wire_dtype="bfloat16", group=1),
            Parameter(name="b", shape=(64,), trainable=False),
        ),
        units=(Unit(name="root", parameters=(0,)), Unit(name="block", parameters=(1, 2))),
        chunk_bytes=2 * CHUNK_BYTES_STEP,
        optimizer_nodes=2,
    )
    whole = Description(
        layout=layout,
        optimizer="adamw",
        update="streaming",
        state_fields=("m", "v"),
        agreement={"data": "d1", "seed": "7"},
    )
    return replace(whole, **changes)


def document(**changes: Any) -> dict[str, Any]:
    """The JSON of a small description, with some keys replaced."""
    whole: dict[str, Any] = json.loads(small().to_bytes())
    return {**whole, **changes}


def encoded(**changes: Any) -> bytes:
    return json.dumps(document(**changes)).encode()


def row(**changes: Any) -> list[Any]:
    """One parameter as the description spells it."""
    whole = {
        "name": "w", "shape": [3], "dtype": "float32", "wire_dtype": "float32",
        "trainable": True, "group": 0,
    }  # fmt: skip
    return list({**whole, **changes}.values())


def one_parameter(**changes: Any) -> bytes:
    return encoded(parameters=[row(**changes)], units=[["u", [0]]])


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    """Any legal description of a small job."""
    layout = draw(layouts())
    count = len(layout.parameters)
    names = draw(st.lists(NAMES, min_size=count, max_size=count, unique=True))
    parameters = [replace(p, name=n) for p, n in zip(layout.parameters, names, strict=True)]
    return Description(
        layout=replace(layout, parameters=tuple(parameters)),
        optimizer=draw(NAMES),
        update=draw(st.sampled_from(["at_step", "streaming"])),
        state_fields=tuple(draw(st.lists(NAMES, max_size=3))),
        agreement=draw(st.dictionaries(NAMES, NAMES, max_size=4)),
    )


@FIXED
@given(description=descriptions())
def test_round_trip(description: Description) -> None:
    """Goal: what arrives is what was sent, geometry included, and spells itself the same."""
    sent = description.to_bytes()
    for received in (sent, memoryview(sent)):
        found = parse_description(received)
        assert found == description
        assert found.layout.chunks == description.layout.chunks
        assert found.layout.placements == description.layout.placements
        assert found.to_bytes() == sent
        assert description_hash(received) == found.hash == description.hash
    assert differences(sent, sent) == []


def test_golden_hash() -> None:
    """Goal: the spelling cannot change by accident; a store would refuse its own job."""
    assert small().hash == description_hash(small().to_bytes())
    assert small().hash == "ef103fa275e04603d9a68bc0e0a9c3791896732d5eab4f772cbe8e08497cf3a2"


def test_hash_ignores_the_order_of_the_agreement() -> None:
    """Goal: two ranks that fill the dictionary in another order agree."""
    one = small(agreement={"data": "d1", "seed": "7", "a": ""})
    other = small(agreement={"a": "", "seed": "7", "data": "d1"})
    assert one.to_bytes() == other.to_bytes()
    assert one.hash == other.hash != small().hash


def with_layout(**changes: Any) -> Description:
    return small(layout=replace(small().layout, **changes))


def with_shape(shape: tuple[int, ...]) -> Description:
    first, *rest = small().layout.parameters
    return with_layout(parameters=(replace(first, shape=shape), *rest))


def with_one_more() -> Description:
    layout = small().layout
    root, block = layout.units
    return with_layout(
        parameters=(*layout.parameters, Parameter(name="extra", shape=(5,))),
        units=(root, replace(block, parameters=(1, 2, 3))),
    )


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (
            with_shape((512, 64)),
            [
                'parameters[0]: ["wte", [512, 64], "float32", "float32", true, 0], '
                'expected ["wte", [256, 64], "float32", "float32", true, 0]'
            ],
        ),
        (
            with_one_more(),
            [
                "parameters: 4 entries, expected 3",
                'units[1]: ["block", [1, 2, 3]], expected ["block", [1, 2]]',
            ],
        ),
        (with_layout(chunk_bytes=16384), ["chunk_bytes: 16384, expected 32768"]),
        (with_layout(optimizer_nodes=3), ["node_count: 3, expected 2"]),
        (small(optimizer="sgd"), ['optimizer: "sgd", expected "adamw"']),
        (small(update="at_step"), ['update: "at_step", expected "streaming"']),
        (small(agreement={"data": "d2", "seed": "7"}), ['agreement.data: "d2", expected "d1"']),
        (small(agreement={"data": "d1"}), ['agreement.seed: null, expected "7"']),
        (small(state_fields=("m",)), ["state_fields: 1 entries, expected 2"]),
    ],
)
def test_differences_name_the_place(found: Description, lines: list[str]) -> None:
    """Goal: the usual mistakes are shown where they are, with both values."""
    assert differences(found.to_bytes(), small().to_bytes()) == lines


def test_differences_are_few_and_short() -> None:
    """Goal: another model altogether still fits a refusal."""
    many = with_layout(
        parameters=tuple(Parameter(name=f"{i}" * 200, shape=(i + 1,)) for i in range(40)),
        units=(Unit(name="u", parameters=tuple(range(40))),),
    )
    other = with_layout(
        parameters=tuple(Parameter(name=f"{i}" * 199, shape=(i + 2,)) for i in range(40)),
        units=(Unit(name="u", parameters=tuple(range(40))),),
    )
    lines = differences(many.to_bytes(), other.to_bytes())
    assert len(lines) == DIFFERENCES_SHOWN_MAX + 1
    assert lines[-1] == f"and {40 - DIFFERENCES_SHOWN_MAX} more"
    assert all(len(line) < 260 for line in lines)


@pytest.mark.parametrize(
    "found",
    [b"", b"garbage", b"[]", b"7", b"null", b'"text"', b"\xff\xfe\0", b"[" * 100_000,
     b'{"a":' * 800 + b"1" + b"}" * 800],
)  # fmt: skip
def test_differences_of_anything(found: bytes) -> None:
    """I6. Goal: whatever a peer calls its description, its refusal can be written."""
    for pair in ((found, small().to_bytes()), (small().to_bytes(), found), (found, found)):
        lines = differences(*pair)
        assert len(lines) <= DIFFERENCES_SHOWN_MAX + 1
        assert all(isinstance(line, str) for line in lines)


def refuses(received: bytes) -> str:
    """The text of the refusal; any other exception fails the test."""
    with pytest.raises(RemoteProtocolError) as caught:
        parse_description(received)
    text = str(caught.value)
    text.encode()  # it travels in a Refuse
    return text


@pytest.mark.parametrize(
    "received",
    [b"", b"not JSON", b"\xff\xfe\0", b"null", b"7", b"[]", b"{}", b'"text"', b"[" * 100_000,
     b'{"parameters":' + b"[" * 900 + b"]" * 900 + b"}", b'{"chunk_bytes":' + b"9" * 5000 + b"}",
     small().to_bytes()[:-1], small().to_bytes() + b"x"],
)  # fmt: skip
def test_not_a_description(received: bytes) -> None:
    """Goal: bytes that are no description are refused."""
    assert "cannot be read" in refuses(received)


@pytest.mark.parametrize("key", sorted(document()))
@pytest.mark.parametrize("value", [None, 7, -1, 0.5, True, "text", [[]], {}, [None], {"a": 1}])
def test_wrong_types(key: str, value: object) -> None:
    """Goal: each key refuses what is not its type."""
    if key == "agreement" and value == {}:
        assert parse_description(encoded(agreement={})).agreement == {}
    elif key == "optimizer" and value == "text":
        assert parse_description(encoded(optimizer="text")).optimizer == "text"
    elif key == "node_count" and value == 7:
        assert parse_description(encoded(node_count=7)).layout.optimizer_nodes == 7
    else:
        refuses(encoded(**{key: value}))


@pytest.mark.parametrize("key", sorted(document()))
def test_missing_keys(key: str) -> None:
    """Goal: no key has a default on the wire."""
    whole = document()
    del whole[key]
    assert repr(key) in refuses(json.dumps(whole).encode())


@pytest.mark.parametrize(
    "changes",
    [{"shape": [-1]}, {"shape": [-3, -2]}, {"shape": [0]}, {"shape": [2**63]},
     {"shape": [INT64_MAX] * DIMENSIONS_MAX}, {"shape": [1] * (DIMENSIONS_MAX + 1)},
     {"shape": [10**300] * 50}, {"shape": [2**40, 2**22]}, {"shape": [3.0]}, {"shape": [True]},
     {"shape": ["3"]}, {"shape": ""}, {"shape": {}}, {"shape": None}, {"shape": [[3]]},
     {"name": None}, {"name": "\ud800"}, {"dtype": "float64"}, {"dtype": []},
     {"wire_dtype": "int8"}, {"trainable": 1}, {"trainable": None}, {"group": -1},
     {"group": 2**63}, {"group": True}],
)  # fmt: skip
def test_hostile_parameters(changes: dict[str, Any]) -> None:
    """I5. Goal: no shape is multiplied out, no name kept, that a sane job could not have."""
    refuses(one_parameter(**changes))


@pytest.mark.parametrize(
    "changes",
    [{"parameters": [row()[:5]]}, {"parameters": [[*row(), 0]]},
     {"parameters": [dict(zip("abcdef", row(), strict=True))]}, {"parameters": ["abcdef"]},
     {"units": [["u", [0, 0]]]}, {"units": [["u", [0]], ["v", [0]]]}, {"units": [["u", [1]]]},
     {"units": [["u", [-1]]]}, {"units": [["u", [10**300]]]}, {"units": [["u", [0.0]]]},
     {"units": [["u", [True]]]}, {"units": [["u", ""]]}, {"units": [["u", {}]]},
     {"units": [["u", {"0": 0}]]}, {"units": [["u"]]}, {"units": [["u", [0], 0]]}, {"units": []},
     {"units": [[7, [0]]]}, {"parameters": [row(), row()], "units": [["u", [0, 1]]]},
     {"chunk_bytes": 10**400 + 1}, {"chunk_bytes": 0}, {"chunk_bytes": 100},
     {"chunk_bytes": 2**40}, {"chunk_bytes": 16384.0}, {"node_count": 0}, {"node_count": -3},
     {"node_count": 10**400}, {"update": "later"}, {"update": ""}, {"state_fields": [1]},
     {"agreement": {"a": 1}}, {"agreement": [["a", "b"]]}],
)  # fmt: skip
def test_hostile_documents(changes: dict[str, Any]) -> None:
    """Goal: geometry that cannot be is refused; so are units that share a parameter, or leave one
    out."""
    refuses(encoded(**{"parameters": [row()], "units": [["u", [0]]], **changes}))


def test_many_names_are_refused_fast() -> None:
    """I5. Goal: a large description with its one repeated name at the end costs no minutes."""
    count = 30_000
    rows = [row(name=f"p{min(i, count - 2)}") for i in range(count)]
    started = time.monotonic()
    text = refuses(encoded(parameters=rows, units=[["u", list(range(count))]]))
    assert f"two parameters are named 'p{count - 2}'" in text
    assert time.monotonic() - started < 5  # in quadratic time: ten; a limit, not a measurement
