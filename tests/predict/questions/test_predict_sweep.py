"""Sweeps of questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.predict.ask.answer import answer
from luwu.predict.ask.question import make_question
from luwu.predict.ask.sweep import Axis, parse_axis, replaced, sweep
from luwu.predict.hardware.catalogue import Catalogue, load
from tests.helpers.schemas import check
from tests.predict import tables

NODE = {**tables.NODE, "processors": 2}
LUWU: dict[str, Any] = {
    **tables.LUWU, "software": "deepspeed-2023", "devices": 8, "batch": 32, "node": NODE,
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "luwu.toml"
    lines = [f"{k} = {json.dumps(v)}" for k, v in LUWU.items() if k != "node"]
    lines += ["[node]", *(f"{k} = {json.dumps(v)}" for k, v in NODE.items())]
    path.write_text("\n".join(lines))
    return path


# ---------------------------------------------------------------------- what is asked


def test_axes_as_they_are_written() -> None:
    """Goal: numbers are numbers, what carries a unit or is a name is text, pairs stay pairs."""
    assert parse_axis("batch=64, 128") == Axis(("batch",), ((64,), (128,)))
    assert parse_axis("node.cached=0.5,1") == Axis(("node.cached",), ((0.5,), (1,)))
    assert parse_axis("sequence_parallel=true,false").values == ((True,), (False,))
    assert parse_axis("network.rate=25 Gbit/s,1e2 Gbit/s").labels == ["25 Gbit/s", "1e2 Gbit/s"]
    pairs = parse_axis("devices:batch=8:64,16:128")
    assert (pairs.keys, pairs.labels) == (("devices", "batch"), ["8:64", "16:128"])


def test_predict_laws_a_point_is_its_question(catalogue: Catalogue) -> None:
    """Goal: each point has the answer of the question with those values, in the order of the axes;
    with one point that of the question as it is."""
    axes = [parse_axis("devices:batch=8:32,16:64"), parse_axis("node.disks=4,12")]
    found = sweep(LUWU, axes, catalogue)
    expected = [
        answer(
            make_question(
                {**LUWU, "devices": devices, "batch": batch, "node": {**NODE, "disks": disks}},
                catalogue,
            )
        )
        for devices, batch in ((8, 32), (16, 64))
        for disks in (4, 12)
    ]
    assert [each.answer for each in found] == expected
    assert [each.number() for each in found] == [each["step_s"] for each in expected]
    (one,) = sweep(LUWU, [parse_axis("node.disks=12")], catalogue)
    assert one.answer == answer(make_question(LUWU, catalogue))
    assert sweep(LUWU, axes, catalogue) == found


def test_predict_laws_a_faster_network_is_never_slower(catalogue: Catalogue) -> None:
    """Goal: a number of an entry is replaced where the question uses it: of workers and node, but
    one may have a network of its own, which then binds."""
    axis = parse_axis("network.rate=25 Gbit/s,50 Gbit/s,100 Gbit/s,200 Gbit/s")
    steps = [each.number() or 0.0 for each in sweep(LUWU, [axis], catalogue)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * steps[-1]
    own = answer(make_question(LUWU, catalogue))["step_s"]
    assert steps[2] == own  # roce-100g, as the catalogue has it
    named = {**LUWU, "node": {**NODE, "network": "roce-100g"}}
    faster = sweep(named, [parse_axis("network.rate=200 Gbit/s")], catalogue)
    node = sweep(LUWU, [parse_axis("node.network.rate=200 Gbit/s")], catalogue)
    assert faster[0].number() == node[0].number() == own

    asked, known = replaced(LUWU, {"network.rate": "200 Gbit/s"}, catalogue)
    name = asked["network"]
    assert name == "roce-100g, rate 200 Gbit/s"
    assert known.network(name).rate == 25e9
    assert catalogue.names("network") == load().names("network")  # the catalogue stays as it was
    assert LUWU["network"] == "roce-100g"


def test_numbers_of_a_drive_and_of_a_name_that_changes(catalogue: Catalogue) -> None:
    """Goal: a number of an entry is that of the entry which the point names."""
    asked, known = replaced(
        LUWU, {"node.disk.write_rate": "5 GB/s", "node.disk": "PM9A3"}, catalogue
    )
    disk = known.find("disk", asked["node"]["disk"])
    assert (disk.write_rate, disk.read_rate) == (5e9, catalogue.find("disk", "PM9A3").read_rate)
    asked, known = replaced(
        LUWU, {"network.rate": "50 Gbit/s", "network.latency_s": "9 us"}, catalogue
    )
    network = known.network(asked["network"])
    assert (network.rate, network.latency_s) == (6.25e9, pytest.approx(9e-6))


def test_systems_beside_each_other(catalogue: Catalogue) -> None:
    """Goal: where the system changes, tables of the others are left out."""
    found = sweep(LUWU, [parse_axis("system=luwu,zero3")], catalogue)
    assert [each.answer["system"] for each in found if each.answer] == ["luwu", "zero3"]


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ([], r"^over: no key; write --over KEY=v1,v2"),
        (["batch"], r"^over: 'batch' is not a key with values"),
        (["=3"], r"^over: '=3' is not a key with values"),
        (["batch=1,,2"], r"^over: a value of batch is empty"),
        (["batch=32,32"], r"^over: '32' is listed twice among the values of batch"),
        (["batch=32", "batch:devices=32:8"], r"^over: batch is given twice"),
        (["devices:batch=8"], r"^over: '8' has 1 values, but devices:batch are 2 keys"),
        ([f"batch={','.join(map(str, range(1, 1002)))}"], r"^over: 1,001 combinations; up to"),
        (["batc=32,64"], r"^batc is unknown here; did you mean batch"),
        (["batch=32.5"], r"^batch: 32.5 is not a whole number"),
        (["model=GPT-13"], r"^model: no model 'GPT-13' is known; did you mean GPT-13B"),
        (["node.dsks=4"], r"^node.dsks is unknown here; did you mean disks"),
        (["host.disks=4"], r"^host.disks: the question has no \[host\]; its tables are \[node\]"),
        (["host.disk.power=4 W"], r"^host.disk.power: the question has no \[host\]"),
        (["netwrk.rate=1 GB/s"], r"^netwrk.rate: the question names no 'netwrk' .* mean network"),
        (["model.layers=4"], r"^model.layers: the question names no 'model' that has numbers"),
        (["network.rte=1 GB/s"], r"^network.rte is not a number of a network; did you mean rate"),
        (["network.rate=100"], r"^network.rate: 100 is not a number with a unit"),
        (["network.rate=100 GB"], r"^network.rate: the unit 'GB' is one of bytes"),
        (["device.all_reduce=1"], r"^device.all_reduce is a measured curve, no number of a device"),
        (["node.disks.x.y=1"], r"^node.disks.x.y: the question has no \[disks\]"),
    ],
)
def test_bad_prediction_sweeps(catalogue: Catalogue, over: list[str], said: str) -> None:
    """Goal: what cannot be asked is refused by the name of its key, with what would fit."""
    with pytest.raises(ConfigError, match=said):
        sweep(LUWU, [parse_axis(each) for each in over], catalogue)


def test_bad_prediction_metrics(catalogue: Catalogue) -> None:
    """Goal: a number that no answer has is refused, with those there are; where requests arrive,
    before they are played: a million would take hours."""
    with pytest.raises(ConfigError, match=r"of: 'step' is not a number .* mean step_s\?; they are"):
        sweep(LUWU, [parse_axis("batch=32")], catalogue, "step")
    arriving = {
        "system": "inference", "model": "Llama3-8B", "device": "H100-80", "network": "ib-ndr",
        "batching": "continuous", "input_tokens": 512, "output_tokens": 64,
        "arrivals": {"per_second": 1.0, "requests": 10**6},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"first_token_s.p50' .*first_token_s.median, "):
        sweep(arriving, [parse_axis("batch=8,16")], catalogue, "arrivals.first_token_s.p50")


# ---------------------------------------------------------------------- the commands


def test_the_sweep_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a row for each point, JSON with whole answers, and errors with an exit code."""
    command = [
        "predict", "sweep", str(file), "--over", "devices=8,12,16",
        "--over=node.network.rate=50 Gbit/s,100 Gbit/s", "--over", "batch=64",
    ]  # fmt: skip
    assert main([*command, "--of", "parts_s.tail"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["devices", "node.network.rate", "batch"]
    assert "parts_s.tail" in lines[0]
    assert len(lines) == 7
    assert "rejected: batch: 64 sequences cannot be shared by 12" in lines[3]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["over"]["devices"] == ["8", "12", "16"]
    assert [each["number"] is None for each in document["points"]] == [False] * 2 + [True] * 2 + [
        False
    ] * 2
    first = document["points"][0]
    assert first["values"] == {"devices": 8, "node.network.rate": "50 Gbit/s", "batch": 64}
    assert first["answer"]["step_s"] == first["number"]
    for wrong, said in (
        (["predict", "sweep"], "takes a file"),
        (["predict", "sweep", str(file)], "over: no key"),
        (["predict", "step", str(file), "--over", "batch=8"], "no flag --over; it belongs to"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


def test_a_step_by_its_own_cores(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the cores' step is beside the closed form's, for people and as JSON; of another system
    it is refused."""
    assert main(["predict", "step", str(file), "--cores", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    check("predict-step", document)
    assert document["cores_step_s"] == pytest.approx(document["step_s"], rel=0.3)
    assert main(["predict", "step", str(file), "--cores"]) == 0
    line = f"by its own cores  {document['cores_step_s']:.3f} s"
    assert line in capsys.readouterr().out
    other = "--system zero3 --model gpt-13b --devices 8xa100-40 --network ib-hdr --cores"
    assert main(["predict", "step", *other.split()]) == 2
    assert "cores: are LuWu's" in capsys.readouterr().err
