"""From a job's description to the records of its pages.

What these hold, and the digest of it: every job of tests/jobs and tests/checkpoint.
"""

from __future__ import annotations

import pytest

from luwu.base.errors import ConfigError
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description
from luwu.wire.stored import UPDATES, WEIGHT
from switch_emu.node.pages import store_config
from switch_emu.store import Field, PageKind

KIB = 1024


def make_layout() -> Layout:
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
    return Layout(parameters=parameters, units=units, chunk_bytes=16 * KIB)


def describe(layout: Layout, optimizer: str, *state_fields: str) -> Description:
    return Description(layout=layout, optimizer=optimizer, state_fields=state_fields)


@pytest.mark.parametrize("trainable", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize(
    ("optimizer", "state_fields", "kernel"),
    [
        ("adamw", ("m", "v"), "torch-fused-adamw"),
        ("sgd", ("momentum",), "torch-fused-sgd"),
        ("sgd", (), "torch-fused-sgd-plain"),
    ],
)
def test_page_records(
    optimizer: str, state_fields: tuple[str, ...], kernel: str, trainable: bool
) -> None:
    """Goal: weights, what of the optimizer's state there is, and the count of updates; a frozen
    page holds its weights and nothing else. Method: one parameter of 4,200 elements: a whole chunk,
    and one of 128 elements with padding."""
    layout = Layout(
        parameters=(Parameter(name="w", shape=(42, 100), trainable=trainable),),
        units=(Unit(name="u", parameters=(0,)),),
        chunk_bytes=16 * KIB,
    )
    config = store_config(describe(layout, optimizer, *state_fields))
    kinds = []
    for elems in (4096, 128):
        names = (WEIGHT, *state_fields) if trainable else (WEIGHT,)
        fields = [Field(name, "float32", elems) for name in names]
        fields += [Field(UPDATES, "int64", 1)] if trainable else []
        name = f"{optimizer}-{elems}-1" if trainable else f"frozen-{elems}"
        kinds.append(PageKind(name, tuple(fields)))
    assert config.kinds == tuple(kinds)
    assert config.page_kinds == (0, 1)
    assert config.page_elems == (4096, 128)
    assert config.optimizer == kernel


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


def test_no_store_for_an_unknown_optimizer() -> None:
    """Goal: refused before a file is made."""
    with pytest.raises(ConfigError, match="'adagrad' with state"):
        store_config(describe(make_layout(), "adagrad", "m"))
