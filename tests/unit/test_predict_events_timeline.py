"""A predicted step as a timeline: read by what reads the events of real runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from luwu.commands.main import main
from luwu.predict.ask.question import Question, read_question
from luwu.predict.ask.replay import play_three_d
from luwu.predict.driven.driven import Driven, Playing, play_driven_steps
from luwu.predict.events.recorded import told_by_stages, write_events
from luwu.predict.hardware.catalogue import load
from luwu.predict.systems.in_network import OptimizerNodes
from luwu.report.aligned import Steps
from luwu.report.busy import busy, updated_before_last_push_ratio
from luwu.report.event_files import event_files, spans

QUESTION = """\
system = "luwu"
model = "GPT-1.3B"
device = "A100-40"
network = "roce-100g"
software = "deepspeed-2023"
devices = 8
sequence = 2048
batch = 32
micro_batch = 4
recompute = "full"

[node]
processor = "Xeon-5320"
disk = "P5510-3.84T"
disks = 12
memory_bytes = "512 GB"
"""

INFERENCE = """\
system = "inference"
model = "Llama3-8B"
device = "H100-80"
network = "ib-ndr"
batch = 8
input_tokens = 128
output_tokens = 8
"""

THREE_D = """\
system = "3d"
model = "GPT-175B"
device = "A100-80"
network = "ib-hdr"
software = "megatron-2023"
devices = 64
sequence = 2048
batch = 16
tensor = 8
pipeline = 4
virtual = 2
recompute = "full"
"""


@pytest.fixture
def question(tmp_path: Path) -> Path:
    path = tmp_path / "question.toml"
    path.write_text(QUESTION, encoding="utf-8")
    return path


@pytest.fixture
def three_d(tmp_path: Path) -> Path:
    """Eight micro-batches through four stages of two parts."""
    path = tmp_path / "three_d.toml"
    path.write_text(THREE_D, encoding="utf-8")
    return path


def play(question: Path) -> Driven:
    asked = read_question(question, load())
    assert isinstance(asked.part, OptimizerNodes)
    return play_driven_steps(asked.job, asked.part, Playing(chunk_bytes=1 << 27))


def test_events_are_those_of_a_run(question: Path, tmp_path: Path) -> None:
    """Goal: the readers of real runs' events find processes, steps and engines, and the times that
    were predicted. Method: their own functions, on what was written."""
    played = play(question)
    write_events(played.told, tmp_path / "events")
    files = event_files(tmp_path / "events")
    assert [file.title for file in files] == ["worker 0", "node", "network"]
    found = busy(tmp_path / "events")
    assert found.survey.notes == []
    assert found.survey.span_count == sum(len(each.spans) for each in played.told.values())
    engines = {(each.process, each.name): each for each in found.engines}
    compute_s = played.record.busy_s("compute")
    assert engines["worker 0", "compute"].busy_ns / 1e9 == pytest.approx(compute_s, rel=1e-6)
    down_s = played.record.busy_s("down")
    assert engines["network", "down"].busy_ns / 1e9 == pytest.approx(down_s, rel=1e-6)
    assert {"read", "update", "write", "read_weights", "prepare", "decide"} <= {
        name for process, name in engines if process == "node"
    }
    of_one = busy(tmp_path / "events", Steps(1, 2))
    counts = {(each.process, each.name): each.span_count for each in of_one.engines}
    for engine in (("node", "update"), ("network", "up"), ("worker 0", "pull")):
        assert 3 * counts[engine] == engines[engine].span_count
    ratio = updated_before_last_push_ratio(tmp_path / "events")
    assert ratio is not None
    assert ratio > 0.5  # pages stream
    forwards = Counter(line["step"] for line in spans(files[0].path, "forward"))
    layers = played.description.layout.units if played.description else ()
    assert forwards == dict.fromkeys(range(3), len(layers))


def test_events_are_the_same_bytes_again(question: Path, tmp_path: Path) -> None:
    """Goal: nothing of the day or the machine is in them."""
    written = []
    for name in ("one", "other"):
        paths = write_events(play(question).told, tmp_path / name)
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]


def test_timeline_of_a_prediction(
    question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: `luwu predict timeline` writes a Chrome trace, and a directory that `luwu trace` makes
    the same trace of, and its summary."""
    out, again, run = tmp_path / "step.json", tmp_path / "again.json", tmp_path / "run"
    said = ["predict", "timeline", str(question), "--out", str(out), "--run-dir", str(run)]
    assert main(said) == 0
    events = json.loads(out.read_text(encoding="ascii"))["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {"worker 0", "node", "network"}
    slices = Counter(each["cat"] for each in events if each["ph"] == "X")
    assert slices["update"] == slices["read"] == slices["write"] > 0
    assert slices["step"] == 3
    assert {each["name"] for each in events if each["ph"] == "i"} >= {"decided"}
    assert main(["trace", "--all", "--out", str(again), str(run)]) == 0
    assert again.read_bytes() == out.read_bytes()
    capsys.readouterr()
    assert main(["trace", "--summary", str(run)]) == 0
    assert "pages updated before the last push of their step began" in capsys.readouterr().out


def test_timeline_of_a_pipeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], three_d: Path
) -> None:
    """Goal: each stage of 3-D training is a worker, as long at work as the event core says; every
    micro-batch goes forward and back once in each part, and is sent on."""
    asked = read_question(three_d, load())
    assert isinstance(asked, Question)
    record = play_three_d(asked).record
    told = told_by_stages(record, 4)
    assert sum(len(each.spans) for each in told.values()) == len(record.spans)
    for stage in range(4):
        own = told[f"worker-{stage}"]
        busy_s = own.busy_s("forward") + own.busy_s("backward") + own.busy_s("optimizer")
        assert busy_s == pytest.approx(record.busy_s(f"stage {stage}"))
        fields = [span.fields for span in own.of("forward")]
        assert sorted(fields) == sorted(
            (("step", 0), ("micro_batch", each), ("part", part))
            for each in range(8) for part in range(2)
        )  # fmt: skip
    ends = 2 * 8  # nothing goes on from the last part, nor back from the first
    assert sum(len(each.of("send")) for each in told.values()) == 4 * 2 * ends - ends
    out, run, svg = tmp_path / "step.json", tmp_path / "run", tmp_path / "step.svg"
    said = ["predict", "timeline", str(three_d), "--out", str(out), "--run-dir", str(run)]
    assert main(said) == 0
    assert f"step    {record.end_s:.3f} s, of a pipeline of 4" in capsys.readouterr().out
    events = json.loads(out.read_text(encoding="ascii"))["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {f"worker {stage}" for stage in range(4)}
    assert main(["trace", "--summary", str(run)]) == 0
    assert main(["predict", "step", str(three_d), "--svg", str(svg)]) == 0
    assert f"{svg}: a step of 4 stages, {record.end_s:.3f} s" in capsys.readouterr().out
    assert all(f"stage {stage} " in svg.read_text(encoding="utf-8") for stage in range(4))


def test_bad_prediction_timeline(
    question: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: what cannot be written or played is refused, before anything is."""
    out = str(tmp_path / "step.json")

    def refused(*words: str) -> str:
        assert main(["predict", *words]) != 0
        return capsys.readouterr().err

    assert "and --out; usage" in refused("timeline", str(question))
    assert "takes a file" in refused("timeline", "--out", out)
    assert "give a file in a directory that exists" in refused(
        "timeline", str(question), "--out", str(tmp_path / "none" / "step.json")
    )
    assert "belongs to luwu predict timeline" in refused("step", str(question), "--out", out)
    other = tmp_path / "other.toml"
    other.write_text(INFERENCE, encoding="utf-8")
    assert "'inference' has closed forms alone" in refused("timeline", str(other), "--out", out)
    (tmp_path / "run" / "events").mkdir(parents=True)
    (tmp_path / "run" / "events" / "node.jsonl").touch()
    assert "holds events already" in refused(
        "timeline", str(question), "--run-dir", str(tmp_path / "run")
    )
    assert not Path(out).exists()
