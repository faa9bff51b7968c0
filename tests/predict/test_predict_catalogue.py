"""What the catalogue holds and refuses: units, sources, misspelt names, files of users."""

from __future__ import annotations

import tomllib
from datetime import date
from importlib import resources
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.catalogue import TAGS, load
from luwu.predict.hardware.hardware import Curve, Notes
from luwu.predict.hardware.values import Dimension, quantity_of

MINE = """
[device.mine]
like = "A100-80"
bf16 = {value = 100, unit = "TFLOP/s"}
"""


def test_numbers_are_in_si() -> None:
    """Goal: prefixes, bits and binary sizes come out as they are meant."""
    assert quantity_of("x", "100 Gbit/s", Dimension.BYTES_PER_S) == 12.5e9
    assert quantity_of("x", "2 GiB", Dimension.BYTES) == 2 * 2**30
    assert quantity_of("x", "312 TFLOP/s", Dimension.OPERATIONS_PER_S) == 312e12
    assert quantity_of("x", "20 us", Dimension.SECONDS) == pytest.approx(20e-6)
    assert quantity_of("x", {"value": 12, "unit": "%"}, Dimension.RATIO) == pytest.approx(0.12)
    assert quantity_of("x", 0.5, Dimension.RATIO) == 0.5


@pytest.mark.parametrize(
    ("value", "dimension", "said"),
    [
        ("100", Dimension.BYTES_PER_S, r"x: '100' is not a number with a unit; .*Gbit/s"),
        ("100 Gbit", Dimension.BYTES_PER_S, r"x: the unit 'Gbit' is unknown.*did you mean Gbit/s"),
        ("100 GB", Dimension.BYTES_PER_S, r"x: the unit 'GB' is one of bytes, but .*bytes_per_s"),
        ({"value": 3}, Dimension.BYTES, r"x: a unit is missing; it is one of B, kB"),
        ({"unit": "GB"}, Dimension.BYTES, r"x: a value is missing"),
        ({"value": "3", "unit": "GB"}, Dimension.BYTES, r"x: '3' is not a number"),
        ({"value": float("nan"), "unit": "GB"}, Dimension.BYTES, r"x: nan is not a number"),
        ("-3 GB", Dimension.BYTES, r"x: -3.0 is below zero"),
        (True, Dimension.RATIO, r"x: True is no"),
    ],
)
def test_bad_prediction_units(value: object, dimension: Dimension, said: str) -> None:
    """Goal: a number without its unit, or of another kind, is named, with what fits."""
    with pytest.raises(ConfigError, match=said):
        quantity_of("x", value, dimension)


def test_every_number_has_a_source() -> None:
    """Goal: source, tag and date of each number of our own; and each processor has its peak."""
    assert all(each.bf16 for each in load().entries["processor"].values())
    found = 0
    for path in sorted((resources.files("luwu.predict") / "data" / "catalogue").iterdir()):
        for kind, entries in tomllib.loads(path.read_text()).items():
            numbers = [each for entry in entries.values() for each in entry.values()]
            for number in numbers if kind != "model" else ():
                if isinstance(number, dict):  # not the name of an entry like it
                    found += 1
                    assert number["source"], number
                    assert number["tag"] in TAGS, number
                    date.fromisoformat(number["date"])
    assert found > 80


def test_a_user_adds_to_the_catalogue(tmp_path: Path) -> None:
    """Goal: an entry like another one has its numbers, but for those that are given."""
    file = tmp_path / "mine.toml"
    file.write_text(MINE)
    catalogue = load(file)
    mine, theirs = catalogue.device("mine"), catalogue.device("A100-80")
    assert mine.bf16 == 100e12
    assert mine.memory_rate == theirs.memory_rate
    assert mine.matmul_bf16 is not None
    assert catalogue.sources["device", "mine"]["bf16"] == "given by the user (stated)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[devise.x]\n", r"\[devise\] is not a kind of entry; did you mean device"),
        ('[device.x]\nlike = "A100"\n', r"device.x.like: no other device 'A100' is known"),
        (
            '[device.x]\nlike = "A100-80"\nbf61 = {value = 1, unit = "TFLOP/s"}\n',
            r"device.x.bf61 is unknown; did you mean bf16",
        ),
        (
            '[device.x]\nlike = "A100-80"\nmemory_bytes = {value = 1, unit = "GB/s"}\n',
            r"device.x.memory_bytes: the unit 'GB/s' is one of bytes_per_s",
        ),
        ('[disk.x]\nread_rate = "1 GB/s"\n', r"disk.x.write_rate is missing; give it in one of"),
        ("[device]\nx = 3\n", r"device.x is not a table"),
        ("[device.x\n", r"is not TOML"),
        ("[model.x]\nlayers = 3\nhidden = 8\nheads = 2\n", r"model.x.vocab is missing"),
        (
            "[model.x]\nlayers = 3\nhidden = 8\nheads = 3\nkv_heads = 2\nvocab = 9\n",
            r"model.x.kv_heads: 2 do not divide 3 heads",
        ),
        (
            '[device.x]\nlike = "A100-80"\n[device.x.all_reduce]\nsizes = [2, 1]\n'
            'rates = [1, 2]\nunit = "GB/s"\n',
            r"device.x.all_reduce: needs sizes that rise",
        ),
    ],
)
def test_bad_prediction_catalogue(tmp_path: Path, text: str, said: str) -> None:
    """Goal: what a user's file has wrong is named, with what would fit."""
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(file)


def test_curves_are_exact_at_their_points_and_note_what_is_beyond() -> None:
    """Goal: between points the rate lies between theirs; outside it is said so."""
    notes: Notes = {}
    curve = Curve("c", (1.0, 10.0, 100.0), (2.0, 8.0, 9.0))
    assert [curve.rate(size, notes) for size in (1.0, 10.0, 100.0)] == [2.0, 8.0, 9.0]
    assert 2.0 < curve.rate(3.0, notes) < 8.0
    assert notes == {}
    assert 0.5 / curve.rate(0.5, notes) == 1.0 / curve.rate(1.0)  # latency binds
    assert curve.rate(1e6) == 9.0
    assert list(notes) == ["c"]
