"""From a job's description to page records, and from pages back to parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description, parse_description
from switch_emu.node.pages import (
    UPDATES,
    WEIGHT,
    field_view,
    parameter_values,
    store_config,
    weights_digest,
)
from switch_emu.store import DecidedStep, Field, MemoryPageStore, PageKind, PageStore
from tests.suites.store_suite import STORES

KIB = 1024


def make_layout(chunk_bytes: int = 16 * KIB) -> Layout:
    """Two units: frozen parameters between trained ones, two wire dtypes, ragged ends, a scalar.

    Units do not follow the order of registration, so the digest's order is not that of the pages.
    """
    rows: list[tuple[tuple[int, ...], bool, str]] = [
        ((70, 100), True, "float32"),
        ((50,), False, "float32"),
        ((129, 65), True, "bfloat16"),
        ((), True, "float32"),
        ((4096,), True, "float32"),
        ((3000, 3), False, "bfloat16"),
        ((64,), True, "float32"),
    ]
    parameters = tuple(
        Parameter(name=f"p{index}", shape=shape, trainable=trainable, wire_dtype=dtype)
        for index, (shape, trainable, dtype) in enumerate(rows)
    )
    units = (Unit(name="b", parameters=(4, 5, 6)), Unit(name="a", parameters=(0, 1, 2, 3)))
    return Layout(parameters=parameters, units=units, chunk_bytes=chunk_bytes)


def describe(layout: Layout, optimizer: str, *state_fields: str) -> Description:
    return Description(layout=layout, optimizer=optimizer, state_fields=state_fields)


def small_layout(trainable: bool) -> Layout:
    """One parameter of 4,200 elements: a whole chunk, and one of 128 elements with padding."""
    return Layout(
        parameters=(Parameter(name="w", shape=(42, 100), trainable=trainable),),
        units=(Unit(name="u", parameters=(0,)),),
        chunk_bytes=16 * KIB,
    )


def arrays(elems: int, *names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "float32", elems) for name in names)


def test_page_records_of_adamw() -> None:
    """Goal: weights, both moments and the count of updates; sizes follow from the fields."""
    config = store_config(describe(small_layout(True), "adamw", "m", "v"))
    count = Field("updates", "int64", 1)
    assert config.kinds == (
        PageKind("adamw-4096-1", (*arrays(4096, "weight", "m", "v"), count)),
        PageKind("adamw-128-1", (*arrays(128, "weight", "m", "v"), count)),
    )
    assert config.page_kinds == (0, 1)
    assert config.page_elems == (4096, 128)
    assert config.kinds[0].offsets == (0, 16384, 32768, 49152)
    assert config.kinds[0].record_bytes == 49152 + 64
    assert config.optimizer == "torch-fused-adamw"


@pytest.mark.parametrize(
    ("state_fields", "kernel"), [(("momentum",), "torch-fused-sgd"), ((), "torch-fused-sgd-plain")]
)
def test_page_records_of_sgd(state_fields: tuple[str, ...], kernel: str) -> None:
    """Goal: momentum only where there is some; the count says whether a step is the first."""
    config = store_config(describe(small_layout(True), "sgd", *state_fields))
    count = Field("updates", "int64", 1)
    assert config.kinds == (
        PageKind("sgd-4096-1", (*arrays(4096, "weight", *state_fields), count)),
        PageKind("sgd-128-1", (*arrays(128, "weight", *state_fields), count)),
    )
    assert config.optimizer == kernel


@pytest.mark.parametrize(
    ("optimizer", "state_fields"), [("adamw", ("m", "v")), ("sgd", ("momentum",)), ("none", ())]
)
def test_page_records_of_a_frozen_parameter(optimizer: str, state_fields: tuple[str, ...]) -> None:
    """Goal: a frozen page holds its weights and nothing else, whatever the optimizer."""
    config = store_config(describe(small_layout(False), optimizer, *state_fields))
    assert config.kinds == (
        PageKind("frozen-4096", arrays(4096, "weight")),
        PageKind("frozen-128", arrays(128, "weight")),
    )
    assert config.state_bytes == 4 * (4096 + 128)


def test_one_page_a_chunk_and_one_kind_a_shape() -> None:
    """Goal: page i is chunk i; equal records share a kind; frozen and trained never do."""
    layout = make_layout()
    config = store_config(describe(layout, "adamw", "m", "v"))
    assert config.page_elems == tuple(chunk.elems for chunk in layout.chunks)
    for chunk in layout.chunks:
        kind = config.kind(chunk.index)
        names = [item.name for item in kind.fields]
        assert names == ([WEIGHT, "m", "v", UPDATES] if chunk.trainable else [WEIGHT])
        assert kind.fields[0].elems == chunk.elems
    assert len({kind.fields for kind in config.kinds}) == len(config.kinds)
    assert len({kind.name for kind in config.kinds}) == len(config.kinds)


def test_the_store_keeps_the_job() -> None:
    """Goal: the description comes back from the configuration, with hash and chunk size."""
    description = describe(make_layout(32 * KIB), "sgd", "momentum")
    config = store_config(description)
    assert config.layout_hash == description.hash
    assert config.chunk_bytes == 32 * KIB
    assert parse_description(config.description) == description


def test_no_store_for_an_unknown_optimizer() -> None:
    """Goal: refused before a file is made."""
    with pytest.raises(ConfigError, match="'adagrad' with state"):
        store_config(describe(make_layout(), "adagrad", "m"))


def test_views_of_a_record_are_no_copies() -> None:
    """Goal: what is written to a view is in the record, at the field's place, and nowhere else."""
    kind = store_config(describe(small_layout(True), "adamw", "m", "v")).kinds[1]
    record = memoryview(bytearray(kind.record_bytes))
    for value, name in enumerate((WEIGHT, "m", "v"), start=1):
        view = field_view(kind, record, name)
        assert view.shape == (128,)
        view[:] = value
    start, stop = kind.range(UPDATES)
    np.frombuffer(record[start:stop], np.int64)[:] = 2**40
    floats = np.frombuffer(record, np.float32)
    np.testing.assert_array_equal(floats[: 3 * 128], np.repeat(np.float32([1, 2, 3]), 128))
    assert np.frombuffer(record, np.int64)[3 * 64] == 2**40
    assert not any(record[3 * 512 + 8 :])


def plain_values(layout: Layout) -> list[Any]:
    """One array a parameter, in order of registration."""
    rng = np.random.default_rng(5)
    return [rng.standard_normal(p.elems, dtype=np.float32) for p in layout.parameters]


def fill(store: PageStore, layout: Layout, values: list[Any]) -> None:
    """Version 0 of a store; padding and moments are rubbish, so they would show."""
    flats = [np.full(elems, np.float32(-7.5)) for elems in layout.unit_elems]
    for place, value in zip(layout.placements, values, strict=True):
        flats[place.unit][place.start : place.start + place.elems] = value
    for chunk in layout.chunks:
        kind = store.config.kind(chunk.index)
        record = memoryview(bytearray(b"\x5a" * kind.record_bytes))
        part = flats[chunk.unit][chunk.start : chunk.start + chunk.elems]
        field_view(kind, record, WEIGHT)[:] = part
        store.write(chunk.index, 0, 0, record)
    store.prepare(DecidedStep(version=0, attempt=0))
    store.decide(0, 0)


def plain_digest(layout: Layout, values: list[Any]) -> str:
    digest = WeightsDigest()
    for parameter, value in zip(layout.parameters, values, strict=True):
        digest.update(parameter.name, parameter.dtype, parameter.shape, value)
    return digest.hexdigest()


@pytest.fixture(params=["memory", "file", "tier of some"])
def stores(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    """Makes a store of the kind for a layout; closes it."""
    with ExitStack() as made:

        def make(layout: Layout) -> PageStore:
            config = store_config(describe(layout, "adamw", "m", "v"))
            path = tmp_path / f"state-{layout.chunk_bytes}"
            return made.enter_context(STORES[request.param](path, config))

        yield make


def test_parameters_come_back_in_order_of_registration(stores: Any) -> None:
    """Goal: every value once, without padding, in parts that never mix two parameters."""
    layout = make_layout()
    values = plain_values(layout)
    store = stores(layout)
    fill(store, layout, values)
    parts = parameter_values(store, layout, 0)
    for value in values:
        found: list[Any] = []
        while sum(part.size for part in found) < value.size:
            found.append(next(parts).copy())
        np.testing.assert_array_equal(np.concatenate(found), value)
    assert next(parts, None) is None


def test_digest_is_that_of_the_plain_arrays_for_every_chunk_size(stores: Any) -> None:
    """I3. Goal: one digest for every arm and chunk size; moments and padding are not in it."""
    values = plain_values(make_layout())
    expected = plain_digest(make_layout(), values)
    for chunk_kib in (16, 32, 48, 1024):
        layout = make_layout(chunk_kib * KIB)
        store = stores(layout)
        fill(store, layout, values)
        assert weights_digest(store, layout) == expected, chunk_kib


def test_digest_sees_every_parameter() -> None:
    """Goal: one changed bit in any parameter changes the digest."""
    layout = make_layout()
    values = plain_values(layout)
    digests = {plain_digest(layout, values)}
    for index in range(len(values)):
        changed = [value.copy() for value in values]
        changed[index].view(np.uint32)[-1] ^= 1
        with MemoryPageStore(store_config(describe(layout, "adamw", "m", "v"))) as store:
            fill(store, layout, changed)
            digests.add(weights_digest(store, layout))
    assert len(digests) == len(values) + 1


def test_digest_is_of_the_decided_version() -> None:
    """I2. Goal: what is written and prepared but not decided is not in the digest."""
    layout = make_layout()
    values = plain_values(layout)
    with MemoryPageStore(store_config(describe(layout, "adamw", "m", "v"))) as store:
        fill(store, layout, values)
        before = weights_digest(store, layout)
        kind = store.config.kind(0)
        store.write(0, 1, 0, bytes(kind.record_bytes))
        assert weights_digest(store, layout) == before
        store.prepare(DecidedStep(version=1, attempt=0))
        assert weights_digest(store, layout) == before
        store.decide(1, 0)
        assert weights_digest(store, layout) != before
