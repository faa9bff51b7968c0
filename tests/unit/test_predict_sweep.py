"""Sweeps of questions, and pictures of what was predicted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.commands.predict_sweep_page import sweep_page
from luwu.predict.ask.answer import answer
from luwu.predict.ask.pictures import picture, steps_picture
from luwu.predict.ask.question import make_question
from luwu.predict.ask.sweep import Axis, parse_axis, replaced, sweep
from luwu.predict.driven.driven import Playing, play_driven_steps
from luwu.predict.events.engines import Record, Span
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.systems.in_network import OptimizerNodes
from luwu.report.chart import as_file, point_chart

NODE = {
    "processor": "Xeon-5320", "processors": 2, "memory_bytes": "512 GiB", "disk": "P5510-3.84T",
    "disks": 12,
}  # fmt: skip
LUWU: dict[str, Any] = {
    "system": "luwu", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
    "software": "deepspeed-2023", "devices": 8, "sequence": 2048, "batch": 32, "micro_batch": 4,
    "recompute": "full", "node": NODE,
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
    assert pairs.is_ordered
    assert not parse_axis("system=luwu,zero3").is_ordered


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
            ),
            catalogue,
        )
        for devices, batch in ((8, 32), (16, 64))
        for disks in (4, 12)
    ]
    assert [each.answer for each in found.points] == expected
    assert found.curves() == {
        "node.disks 4": [expected[0]["step_s"], expected[2]["step_s"]],
        "node.disks 12": [expected[1]["step_s"], expected[3]["step_s"]],
    }
    (one,) = sweep(LUWU, [parse_axis("node.disks=12")], catalogue).points
    assert one.answer == answer(make_question(LUWU, catalogue), catalogue)
    assert sweep(LUWU, axes, catalogue) == found


def test_predict_laws_a_faster_network_is_never_slower(catalogue: Catalogue) -> None:
    """Goal: a number of an entry is replaced where the question uses it: of workers and node, but
    one may have a network of its own, which then binds. Its source says who gave it."""
    axis = parse_axis("network.rate=25 Gbit/s,50 Gbit/s,100 Gbit/s,200 Gbit/s")
    steps = sweep(LUWU, [axis], catalogue).curves()[""]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * steps[-1]
    own = answer(make_question(LUWU, catalogue), catalogue)["step_s"]
    assert steps[2] == own  # roce-100g, as the catalogue has it
    named = {**LUWU, "node": {**NODE, "network": "roce-100g"}}
    faster = sweep(named, [parse_axis("network.rate=200 Gbit/s")], catalogue)
    node = sweep(LUWU, [parse_axis("node.network.rate=200 Gbit/s")], catalogue)
    assert faster.curves()[""][0] == node.curves()[""][0] == own

    asked, known = replaced(LUWU, {"network.rate": "200 Gbit/s"}, catalogue)
    name = asked["network"]
    assert name == "roce-100g, rate 200 Gbit/s"
    assert known.network(name).rate == 25e9
    assert known.known[f"network.{name}.rate"].source == "given by the sweep"
    assert (
        known.known[f"network.{name}.latency_s"] == catalogue.known["network.roce-100g.latency_s"]
    )
    assert catalogue.names("network") == load().names("network")  # the catalogue stays as it was
    assert LUWU["network"] == "roce-100g"


def test_numbers_of_a_drive_and_of_a_name_that_changes(catalogue: Catalogue) -> None:
    """Goal: a number of an entry is that of the entry which the point names."""
    asked, known = replaced(
        LUWU, {"node.disk.write_rate": "5 GB/s", "node.disk": "PM9A3"}, catalogue
    )
    disk = known.disk(asked["node"]["disk"])
    assert (disk.write_rate, disk.read_rate) == (5e9, catalogue.disk("PM9A3").read_rate)
    asked, known = replaced(
        LUWU, {"network.rate": "50 Gbit/s", "network.latency_s": "9 us"}, catalogue
    )
    network = known.network(asked["network"])
    assert (network.rate, network.latency_s) == (6.25e9, pytest.approx(9e-6))


def test_systems_beside_each_other(catalogue: Catalogue) -> None:
    """Goal: where the system changes, tables of the others are left out."""
    found = sweep(LUWU, [parse_axis("system=luwu,zero3")], catalogue)
    assert [each.answer["system"] for each in found.points if each.answer] == ["luwu", "zero3"]


def test_predict_laws_what_has_no_effect_is_named(catalogue: Catalogue) -> None:
    """Goal: an axis along which the number never changes is named, and no other; a single value
    says nothing; a part that is not there takes no time."""
    axes = [parse_axis("device.power=300 W,400 W"), parse_axis("node.disks=4,12")]
    found = sweep(LUWU, axes, catalogue)
    assert found.without_effect() == ["device.power"]
    assert found.without_effect("memory_bytes.states") == ["device.power", "node.disks"]
    assert sweep(LUWU, [parse_axis("node.disks=4")], catalogue).without_effect() == []
    waits = found.numbers("parts_s.waiting_for_disk_write")
    assert [wait is not None and wait > 0 for wait in waits] == [True, False] * 2


def test_a_point_that_cannot_be_says_why(catalogue: Catalogue) -> None:
    """Goal: the others are answered, and its place in the curve is a gap."""
    found = sweep(LUWU, [parse_axis("devices=8,12")], catalogue)
    assert found.points[1].answer is None
    assert found.points[1].refused.startswith("batch: 32 sequences cannot be shared by 12")
    assert found.curves()[""][1] != found.curves()[""][1]  # NaN


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
    """Goal: a number that no answer has is refused, with those there are."""
    found = sweep(LUWU, [parse_axis("batch=32")], catalogue)
    with pytest.raises(ConfigError, match=r"of: 'step' is not a number .* mean step_s\?; they are"):
        found.numbers("step")


# ---------------------------------------------------------------------- the commands


def test_the_sweep_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a row for each point, JSON with whole answers, a plot with a mark for each, and errors
    with an exit code."""
    picture_file = tmp_path / "sweep.svg"
    command = [
        "predict", "sweep", str(file), "--over", "devices=8,12,16",
        "--over=node.network.rate=50 Gbit/s,100 Gbit/s", "--over", "batch=64",
    ]  # fmt: skip
    assert main([*command, "--of", "parts_s.tail", "--svg", str(picture_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["devices", "node.network.rate", "batch"]
    assert "parts_s.tail" in lines[0]
    assert len(lines) == 7
    assert "rejected: batch: 64 sequences cannot be shared by 12" in lines[3]
    svg = ElementTree.fromstring(picture_file.read_text())
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}circle"))) == 4
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
        (["predict", "compare", str(file), "--over", "batch=8"], "no flag --over; it belongs to"),
        (
            ["predict", "validate", "--svg", "x.svg"],
            "it belongs to luwu predict step, luwu predict compare, luwu predict sweep",
        ),
        ([*command, "--svg", str(tmp_path)], "svg: cannot write"),
        ([*command, "--html", str(tmp_path)], "html: cannot write"),
    ):
        assert main(wrong) == 2
        assert said in capsys.readouterr().err


@pytest.mark.feature("a sweep as one page with sliders")
def test_the_page_of_a_sweep(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: one file that needs nothing else, with every point: its numbers, its parts, its mark in
    the plot; the first that has an answer is shown. Method: the page is XML."""
    page_file = tmp_path / "page.html"
    overs = ["--over", "devices=12,8,4", "--over", "network.rate=50 Gbit/s,100 Gbit/s"]
    command = ["predict", "sweep", str(file), *overs, "--over=node.disks=4,12"]
    assert main([*command, "--html", str(page_file), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    text = page_file.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    page = ElementTree.fromstring(text)
    sliders = [each for each in page.iter("input") if each.get("type") == "range"]
    strides = [int(each.get("data-stride", "")) for each in sliders]
    labels = [json.loads(each.get("data-labels", "")) for each in sliders]
    assert (strides, [int(each.get("max", "")) for each in sliders]) == ([4, 2, 1], [2, 1, 1])
    shown = sum(int(each.get("value", "")) * s for each, s in zip(sliders, strides, strict=True))
    sections = list(page.iter("section"))
    assert [at for at, each in enumerate(sections) if each.get("hidden") is None] == [shown] == [4]
    plots = list(page.find(".//div[@id='plot']").iter("svg"))  # type: ignore[union-attr]
    assert len(plots) == 2
    for at, (point, section) in enumerate(zip(points, sections, strict=True)):
        values = [str(each) for each in point["values"].values()]
        places = [at // stride % len(own) for stride, own in zip(strides, labels, strict=True)]
        assert values == [own[place] for own, place in zip(labels, places, strict=True)]
        said, circle = "".join(section.itertext()), int(section.get("data-circle", ""))
        if point["answer"] is None:
            assert point["refused"] in said
            assert circle == -1
            continue
        assert f"{point['answer']['step_s']:.3f} s" in said
        assert point["answer"]["binding"].replace("_", " ") in said
        assert len(list(section.iter("rect"))) == 2 * sum(
            seconds > 0 for seconds in point["answer"]["parts_s"].values()
        )
        for plot in plots:
            title = list(plot.iter("circle"))[circle].find("title")
            assert title is not None
            assert title.text == (
                f"network.rate {values[1]}, node.disks {values[2]}, {values[0]}: "
                f"{point['number']:.6g}"
            )


def test_the_page_of_a_sweep_escapes_what_users_write(catalogue: Catalogue) -> None:
    """Goal: a name is a text on the page, whatever is in it."""
    axes = [Axis(("system",), (("luwu",), ("<b>&\"'",)))]
    text = sweep_page(sweep(LUWU, axes, catalogue), "step_s")
    assert "<b>" not in text
    ElementTree.fromstring(text)


def test_the_timeline_of_a_step(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: `luwu predict step --svg` draws what is played, and refuses what is not."""
    picture_file = tmp_path / "step.svg"
    assert main(["predict", "step", str(file), "--svg", str(picture_file)]) == 0
    assert f"{picture_file}: 2 steps as the cores decide them, " in capsys.readouterr().out
    svg = ElementTree.fromstring(picture_file.read_text())
    said = [each.text or "" for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"step 1 ends", "step 2 ends", "pull", "push", "pale: forward"} <= set(said)
    assert main(["predict", "step", str(file), "--json", "--svg", str(picture_file)]) == 0
    assert json.loads(capsys.readouterr().out)["system"] == "luwu"
    other = tmp_path / "inference.toml"
    asked = {
        "system": "inference", "model": "Llama3-8B", "device": "H100-80", "network": "ib-ndr",
        "batch": 8, "input_tokens": 128, "output_tokens": 8,
    }  # fmt: skip
    other.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in asked.items()))
    picture_file.unlink()
    assert main(["predict", "step", str(other), "--svg", str(picture_file)]) == 2
    assert "svg: steps of training are drawn, not inference" in capsys.readouterr().err
    assert not picture_file.exists()


# ---------------------------------------------------------------------- pictures


def test_predict_laws_a_picture_is_its_record(catalogue: Catalogue) -> None:
    """Goal: each span in the window once, none over another, and engines as busy as the record says
    they were."""
    question = make_question(LUWU, catalogue)
    assert isinstance(question.part, OptimizerNodes)
    played = play_driven_steps(question.job, question.part)
    whole = picture(played.record)
    assert sum(len(row.spans) for row in whole.rows) == len(played.record.spans)
    shown = steps_picture(played)
    assert [row.title for row in shown.rows] == [
        "compute", "down", "up", "disk read", "node memory", "disk write"
    ]  # fmt: skip
    start, end = played.ends_s[-2:]
    for row in picture(played.record, start_s=start, end_s=end).rows:
        spans = played.record.of(row.title)
        busy_s = sum(max(0.0, min(s.end_s, end) - max(s.start_s, start)) for s in spans)
        assert row.busy_ratio == pytest.approx(busy_s / (end - start))
    assert list(shown.marks_s.values()) == [*played.ends_s[-2:]]
    assert (shown.start_s, shown.end_s) == (played.ends_s[-3], played.ends_s[-1])
    two = play_driven_steps(question.job, question.part, Playing(steps=2))
    assert steps_picture(two).start_s == 0


def test_jobs_at_once_have_rows_of_their_own() -> None:
    """Goal: an engine with two lanes is two rows, each half of what it could do."""
    record = Record(
        [Span("gpu", "unit 0", 0.0, 2.0, 1.0), Span("gpu", "unit 1", 1.0, 3.0, 1.0),
         Span("disk", "unit 0", 2.0, 4.0, 1.0), Span("gpu", "unit 2", 2.0, 4.0, 1.0)]
    )  # fmt: skip
    rows = picture(record).rows
    assert [(row.title, len(row.spans)) for row in rows] == [
        ("gpu 0", 2),
        ("gpu 1", 1),
        ("disk", 1),
    ]
    assert [row.busy_ratio for row in rows] == [0.75, 0.75, 0.5]
    assert picture(record, start_s=3.0).rows[0].busy_ratio == 1.0


def test_bad_prediction_pictures() -> None:
    """Goal: an empty window and an unknown engine are refused."""
    record = Record([Span("gpu", "unit 0", 0.0, 2.0, 1.0)])
    with pytest.raises(ConfigError, match=r"from 2 s to 3 s: nothing happens then; .* ends at 2 s"):
        picture(record, start_s=2.0, end_s=3.0)
    with pytest.raises(ConfigError, match=r"'cpu' is not an engine here; they are gpu"):
        picture(record, engines=["cpu"])


def test_charts_are_whole() -> None:
    """Goal: what is drawn lies within the picture, whatever the values; more curves than colours
    are told apart by their dashes; names are escaped."""
    nan = float("nan")
    for curves in (
        {"": [1.0, nan, 3.0]},
        {"<a>": [nan] * 3, "b": [-1.0, 0.0, 2.0]},
        {"a": [nan] * 3},
    ):
        ElementTree.fromstring(
            as_file(point_chart(curves, ["x", "<y>", "z"], x_name="", y_name=""))
        )
    many = point_chart({str(n): [float(n)] for n in range(20)}, ["1"], x_name="", y_name="")
    assert many.count("stroke-dasharray") == 2 * 15
    labels = [f"{n} Gbit/s" for n in range(200)]
    long = ElementTree.fromstring(point_chart({"": [1.0] * 200}, labels, x_name="", y_name=""))
    assert len([each for each in long.iter("text") if "Gbit/s" in (each.text or "")]) < 20
