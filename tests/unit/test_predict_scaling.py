"""Hardware of later generations: factors as a user's data."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue, load

LATER = """
[scaling.none]
logic = 1

[scaling.two-years]
logic = 2
memory = 1.5
network = {value = 3, source = "road map"}

[device.same]
like = "H100-80"
scaling = "none"

[device.next]
like = "H100-80"
scaling = "two-years"

[device.second]
like = "H100-80"
scaling = "two-years"
generations = 2
power = {value = 1, unit = "kW"}

[network.next]
like = "sriov"
scaling = "two-years"
"""


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    path = tmp_path / "later.toml"
    path.write_text(LATER)
    return load(path)


def test_numbers_of_later_generations(catalogue: Catalogue) -> None:
    """Q1. Goal: each axis has its own numbers, a generation after another multiplies, and what no
    axis has stays or is given."""
    today, second = catalogue.device("H100-80"), catalogue.device("second")
    assert (second.bf16, second.fp8) == (4 * today.bf16, 4 * (today.fp8 or 0))
    assert second.memory_rate == 2.25 * today.memory_rate
    assert second.memory_bytes == today.memory_bytes
    assert second.host_rate == 9 * today.host_rate
    assert second.matmul_fp8 is not None
    assert today.matmul_fp8 is not None
    assert second.matmul_fp8.rate(4096) == 4 * today.matmul_fp8.rate(4096)
    assert second.power == 1000
    ports, now = catalogue.network("next"), catalogue.network("sriov")
    assert (ports.rate, ports.stream_rate) == (3 * now.rate, 3 * (now.stream_rate or 0))
    assert ports.latency_s == now.latency_s


def test_predict_laws_latency_is_not_scaled(catalogue: Catalogue) -> None:
    """Q2. Goal: the shortest exchange takes as long as today; longer ones are faster, by no more
    than the factor."""
    today, later = catalogue.device("H100-80").all_reduce, catalogue.device("next").all_reduce
    assert today is not None
    assert later is not None
    assert later.rates[0] == pytest.approx(today.rates[0])
    gains = [after / before for after, before in zip(later.rates, today.rates, strict=True)]
    assert all(1 < gain < 3 for gain in gains[1:])
    assert gains[-1] > 2.99


def test_predict_laws_a_factor_of_one_is_today(catalogue: Catalogue) -> None:
    """Goal: steps of a device scaled by 1 are those of today; more of anything is never slower."""
    table = {
        "system": "3d", "model": "GPT-175B", "network": "ib-ndr", "software": "nemo-2024",
        "devices": 128, "sequence": 2048, "batch": 256, "tensor": 4, "pipeline": 8,
        "sequence_parallel": True,
    }  # fmt: skip
    parts = {
        name: make_question({**table, "device": name}, catalogue).answer()
        for name in ("H100-80", "same", "next", "second")
    }
    assert parts["same"].parts == parts["H100-80"].parts
    assert parts["H100-80"].seconds > parts["next"].seconds > parts["second"].seconds


def test_scaled_numbers_are_assumptions(catalogue: Catalogue) -> None:
    """Goal: source and tag of a scaled number say that somebody assumed its factor."""
    known = catalogue.known
    assert known["scaling.two-years.logic"].source == "assumption of the user"
    assert known["scaling.two-years.network"].source == "road map"
    assert known["device.second.bf16"].source.endswith("; 4 times, scaling.two-years")
    assert known["device.second.bf16"].tag == "assumed"
    assert known["device.second.memory_bytes"] == known["device.H100-80.memory_bytes"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[scaling.x]\nlogic = 0\n", r"scaling.x.logic: 0 leaves nothing; a factor above 0 fits"),
        ("[scaling.x]\nlogics = 2\n", r"scaling.x.logics is unknown; did you mean logic"),
        (
            '[device.x]\nlike = "A100-80"\nscaling = "y"\n[scaling.yy]\nlogic = 2\n',
            r"device.x.scaling: no scaling 'y' is known",
        ),
        (
            '[device.x]\nlike = "A100-80"\ngenerations = 2\n',
            r"device.x.generations: has no effect without scaling",
        ),
        (
            '[scaling.y]\n[device.x]\nlike = "A100-80"\nscaling = "y"\ngenerations = 0.5\n',
            r"device.x.generations: 0.5 is not a whole number above zero",
        ),
        ('[disk.x]\nlike = "PM9A3"\nscaling = "y"\n', r"disk.x.scaling is unknown"),
    ],
)
def test_bad_prediction_scaling(tmp_path: Path, text: str, said: str) -> None:
    """Goal: a factor or generation that cannot be names its key."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(path)
