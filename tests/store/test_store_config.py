"""The configuration of a store: sizes, its file, and what is refused."""

from __future__ import annotations

import pytest

from luwu.base.errors import ConfigError, PageCorruptError, StateError
from switch_emu.store import Field, PageKind
from switch_emu.store.config import decode_config, encode_config
from switch_emu.store.geometry import Geometry, tail_bytes
from tests.suites.store_suite import adamw_kind, frozen_kind, sgd_kind, small_config


def test_fields_start_on_64_bytes_and_parts_cover_the_record() -> None:
    """Goal: the layout of a record follows from its fields."""
    kind = PageKind(
        "odd", (Field("a", "uint8", 3), Field("b", "bfloat16", 33), Field("c", "int64", 1))
    )
    assert kind.offsets == (0, 64, 192)
    assert kind.record_bytes == 256
    assert kind.parts == ((0, 64), (64, 192), (192, 256))
    assert kind.range("b") == (64, 64 + 66)
    with pytest.raises(StateError, match="no field 'd'; it has a, b, c"):
        kind.range("d")


def test_page_headers_cost_less_than_two_percent() -> None:
    """Goal: at the smallest chunk, what a page needs beside its fields stays within 2 %.
    Method: bytes in the side file and twice in the manifest, against the bytes of the fields."""
    for kind in (adamw_kind(4096), sgd_kind(4096), frozen_kind(4096)):
        config = small_config(kinds=(kind,), page_kinds=(0,) * 10, page_elems=(4096,) * 10)
        geometry = Geometry(config)
        written = geometry.side_bytes + 2 * geometry.table.table_bytes
        content = 10 * sum(item.field_bytes for item in kind.fields)
        assert written <= 1.02 * content, kind.name


def test_bodies_are_whole_blocks() -> None:
    """Goal: no two pages share a block, tails stay small."""
    config = small_config()
    geometry = Geometry(config)
    assert [tail_bytes(kind) for kind in config.kinds] == [64, 0, 0, 256]
    assert geometry.offsets == [0, 49152, 53248, 61440, 61440, 69632, 118784]
    assert geometry.side_bytes == 118784


@pytest.mark.parametrize(
    "make",
    [
        lambda: Field("w", "float8", 1),
        lambda: Field("w", "float32", 0),
        lambda: PageKind("none", ()),
        lambda: PageKind("twice", (Field("w", "int64", 1), Field("w", "int64", 1))),
        lambda: small_config(page_kinds=(), page_elems=()),
        lambda: small_config(page_kinds=(9,) * 7),
        lambda: small_config(page_kinds=(-1,) * 7),
        lambda: small_config(store_uuid="x"),
    ],
)
def test_what_cannot_work_is_refused(make: object) -> None:
    """Goal: a configuration is checked once, at the edge."""
    assert callable(make)
    with pytest.raises(ConfigError):
        make()


def test_every_flipped_bit_in_the_config_file_is_found() -> None:
    """Goal: a damaged CONFIG never passes. Method: flip one bit of each byte in turn."""
    data = encode_config(small_config())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises((PageCorruptError, ConfigError)):
            decode_config(bytes(damaged), place="CONFIG")


def test_other_format_version_is_refused() -> None:
    """Goal: a newer store is named as such, not as damage."""
    data = encode_config(small_config()).replace(b"luwu-store 1", b"luwu-store 2")
    with pytest.raises(ConfigError, match="format version 2, this program reads 1"):
        decode_config(data, place="CONFIG")
