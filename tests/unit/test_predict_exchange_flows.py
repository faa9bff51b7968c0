"""Exchanges of a step, flow by flow: the closed form where they are spread, slower where hashed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.ask.question import make_question
from luwu.predict.ask.question_training import Question
from luwu.predict.events.exchanges import PlayedExchange, play_exchanges
from luwu.predict.hardware.catalogue import Catalogue

TABLE: dict[str, Any] = {
    "system": "3d", "model": "GPT-175B", "device": "H100-80", "network": "ib-ndr",
    "software": "nemo-2024", "devices": 256, "sequence": 2048, "batch": 512, "tensor": 4,
    "pipeline": 8, "sequence_parallel": True,
}  # fmt: skip
CLOS: dict[str, Any] = {"kind": "clos", "radix": 32}


def question(catalogue: Catalogue, **more: Any) -> Question:
    made = make_question({**TABLE, "topology": CLOS, **more}, catalogue)
    assert isinstance(made, Question)
    return made


def played(catalogue: Catalogue, channels: int = 1, **more: Any) -> dict[str, PlayedExchange]:
    made = question(catalogue, **more)
    built = made.build()
    assert built is not None
    return play_exchanges(built, made.exchanges(), made.job.devices, channels)


@pytest.mark.parametrize(
    ("kind", "radix", "devices", "more"),
    [("clos", 32, 256, {}), ("clos", 32, 384, {"taper": [3]}), ("clos", 16, 256, {}),
     ("single-switch", 256, 256, {}), ("rail-optimised", 32, 256, {}), ("rail-only", 32, 256, {})],
)  # fmt: skip
def test_predict_laws_spread_flows_are_the_closed_form(
    catalogue: Catalogue, kind: str, radix: int, devices: int, more: dict[str, Any]
) -> None:
    """A5, S16. Goal: within 1 %, where every switch has as many links to each above it; hashed
    flows are never faster, and on one switch never slower."""
    topology = {"kind": kind, "radix": radix, **more}
    for each in played(catalogue, topology=topology, devices=devices, batch=devices).values():
        assert each.spread_s == pytest.approx(each.closed_s, rel=0.01)
        assert each.hashed_s >= each.spread_s * (1 - 1e-9)
        if kind == "single-switch":
            assert each.hashed_s == pytest.approx(each.spread_s)


def test_hashed_flows_meet(catalogue: Catalogue) -> None:
    """A6. Goal: two flows or more on one link, so at least twice as long; more channels meet less
    unevenly; on rails neighbours share a switch, and none meet."""
    one = played(catalogue)["data"]
    assert one.flows == 256
    assert one.hashed_s >= 1.99 * one.spread_s
    assert "switch" in one.busiest
    many = played(catalogue, channels=4)["data"]
    assert many.flows == 4 * 256
    assert many.spread_s == pytest.approx(one.spread_s)
    assert many.hashed_s < one.hashed_s
    rails = played(catalogue, topology={"kind": "rail-optimised", "radix": 64})["data"]
    assert rails.hashed_s == pytest.approx(rails.closed_s)


def test_two_plays_are_identical(catalogue: Catalogue) -> None:
    assert played(catalogue, channels=2) == played(catalogue, channels=2)


def test_all_to_all_goes_to_every_rank(catalogue: Catalogue) -> None:
    """A4. Goal: as many flows as there are pairs, which send what a port sends, together."""
    experts: dict[str, Any] = {
        "model": "Mixtral-8x7B", "devices": 64, "batch": 64, "pipeline": 1, "expert": 8,
    }  # fmt: skip
    single = {"kind": "single-switch", "radix": 64}
    each = played(catalogue, topology=single, **experts)["expert"]
    assert each.flows == 64 * 7
    assert each.spread_s == pytest.approx(each.closed_s, rel=0.01)


@pytest.mark.parametrize(
    ("more", "channels", "said"),
    [
        ({"topology": {"kind": "torus", "sizes": [4, 8, 8]}}, 1, r"topology\.kind: .*clos"),
        ({}, 0, "channels: 0"),
        ({}, 64, r"data: 16384 flows .* up to 8192"),
        ({"system": "ddp", "model": "GPT-1.3B", "devices": 8, "batch": 8, "tensor": 1,
          "pipeline": 1, "sequence_parallel": False}, 1, "all exchanges stay in fast domains"),
        ({"system": "atp", "model": "GPT-1.3B", "tensor": 1, "pipeline": 1,
          "sequence_parallel": False, "topology": {**CLOS, "aggregates": True}}, 1,
         r"sum \(in_network_all_reduce\)"),
    ],
)  # fmt: skip
def test_bad_prediction_of_flows(
    catalogue: Catalogue, more: dict[str, Any], channels: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        played(catalogue, channels, **more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [f"{key} = {json.dumps(value)}" for key, value in TABLE.items()]
    made = tmp_path / "question.toml"
    made.write_text("\n".join([*lines, "[topology]", 'kind = "clos"', "radix = 32", ""]))
    return made


def test_the_command_says_what_was_played(
    catalogue: Catalogue, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = played(catalogue, 2)
    assert main(["predict", "flows", str(file), "--channels", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["channels"] == 2
    assert found["exchanges"]["data"]["hashed_s"] == pytest.approx(expected["data"].hashed_s)
    assert main(["predict", "flows", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["data", "256", "flows:"], ["pipeline", "256", "flows:"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "missing argument 'FILE'"), (["{file}", "--channels", "two"], "--channels: 'two'"),
     (["{plain}"], r"topology: without one")],
)  # fmt: skip
def test_bad_prediction_commands_of_flows(
    file: Path, tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(file.read_text().partition("[topology]")[0])
    told = [each.format(file=file, plain=plain) for each in arguments]
    assert main(["predict", "flows", *told]) == 2
    assert said in capsys.readouterr().err
