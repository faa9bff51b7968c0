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
from switch_emu.store import Field, PageKind, StoreConfig


def config_of(trainable: bool, optimizer: str, *state_fields: str) -> StoreConfig:
    """Of one parameter of 8,300 elements: two whole chunks, and one of 128 with padding."""
    layout = Layout(
        parameters=(Parameter(name="w", shape=(83, 100), trainable=trainable),),
        units=(Unit(name="u", parameters=(0,)),),
        chunk_bytes=16 * 1024,
    )
    return store_config(Description(layout=layout, optimizer=optimizer, state_fields=state_fields))


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
    page holds its weights and nothing else; equal records are of one kind."""
    config = config_of(trainable, optimizer, *state_fields)
    kinds = []
    for elems in (4096, 128):
        names = (WEIGHT, *state_fields) if trainable else (WEIGHT,)
        fields = [Field(name, "float32", elems) for name in names]
        fields += [Field(UPDATES, "int64", 1)] if trainable else []
        name = f"{optimizer}-{elems}-1" if trainable else f"frozen-{elems}"
        kinds.append(PageKind(name, tuple(fields)))
    assert config.kinds == tuple(kinds)
    assert config.page_kinds == (0, 0, 1)
    assert config.page_elems == (4096, 4096, 128)
    assert config.optimizer == kernel


def test_no_store_for_an_unknown_optimizer() -> None:
    """Goal: refused before a file is made."""
    with pytest.raises(ConfigError, match="'adagrad' with state"):
        config_of(True, "adagrad", "m")
