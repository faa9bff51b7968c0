"""Steps of data parallel training, played unit by unit, beside their closed forms."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
import simpy

from luwu.commands.main import main
from luwu.predict.ask.question import make_question
from luwu.predict.ask.question_training import Question
from luwu.predict.ask.replay import DIFFERS, agreement, play_units, replay
from luwu.predict.events.data_parallel import (
    COMPUTE,
    HOST,
    PCIE,
    PORT_IN,
    PORT_OUT,
    READ,
    WRITE,
    DataParallelStep,
    play_data_parallel,
)
from luwu.predict.events.engines import Engine, Record
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.model.overlap import overlapped
from luwu.predict.model.units import Unit, units_of
from luwu.predict.systems.offload import moved_in_backward, optimizer_stage

FSDP: dict[str, Any] = {
    "system": "zero3", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "software": "torchtitan-2024", "devices": 256, "sequence": 8192, "batch": 512,
    "micro_batch": 1, "recompute": "full",
}  # fmt: skip
HOST_TABLE = {
    "processor": "Xeon-5320", "memory_bytes": "1 TiB", "disk": "P5510-3.84T", "disks": 8,
    "devices": 8,
}  # fmt: skip
DEEPSPEED: dict[str, Any] = {
    "system": "zero-infinity", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
    "software": "deepspeed-2023", "devices": 8, "sequence": 2048, "batch": 64, "micro_batch": 4,
    "recompute": "full", "host": HOST_TABLE,
}  # fmt: skip
DDP: dict[str, Any] = {
    **FSDP, "system": "ddp", "model": "GPT-1.3B", "devices": 64, "batch": 256, "sequence": 2048,
    "micro_batch": 4, "recompute": "none",
}  # fmt: skip
QUESTIONS = {
    "zero3": FSDP,
    "zero3 on a slow network": {**FSDP, "network": "roce-100g"},
    "zero3, PyTorch's window": {**FSDP, "model": "Llama3-8B", "devices": 64, "batch": 256},
    "zero-infinity": DEEPSPEED,
    "zero-infinity, weights on drives": {**DEEPSPEED, "host": {
        **HOST_TABLE, "weights_to_disk": True,
    }},
    "zero-infinity, pipelined": {**DEEPSPEED, "host": {**HOST_TABLE, "pipelined": True}},
    "zero-offload": {**DEEPSPEED, "system": "zero-offload"},
    "ddp": DDP,
    "ddp on a slow network": {**DDP, "network": "roce-100g"},
    "atp": {**DDP, "system": "atp", "network": "roce-100g"},
}  # fmt: skip


INFERENCE: dict[str, Any] = {
    "system": "inference", "model": "Llama3-8B", "device": "H100-80", "network": "ib-ndr",
    "batch": 8, "input_tokens": 128, "output_tokens": 8,
}  # fmt: skip


def toml_text(table: dict[str, Any]) -> str:
    """A question as its file has it: keys, then its tables."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in table.items() if not isinstance(v, dict)]
    for name, inner in table.items():
        if isinstance(inner, dict):
            lines += [
                f"[{name}]",
                *(f"{key} = {json.dumps(value)}" for key, value in inner.items()),
            ]
    return "\n".join(lines)


def question(table: dict[str, Any], catalogue: Catalogue) -> Question:
    found = make_question(table, catalogue)
    assert isinstance(found, Question)
    return found


# ---------------------------------------------------------------------- engines beside each other


@pytest.mark.parametrize(("compute_s", "exchange_s"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)])
def test_predict_laws_two_engines_slow_each_other_down(compute_s: float, exchange_s: float) -> None:
    """V1. Goal: two engines at work together end when the closed form says, also where each has
    several jobs; alone each takes its own time."""
    for jobs in (1, 4):
        env, record = simpy.Environment(), Record()
        compute, port = (Engine(env, record, name) for name in ("compute", "port"))
        compute.slow_beside(port, 1 - 0.15)
        port.slow_beside(compute, 0.7)
        for engine, seconds in ((compute, compute_s), (port, exchange_s)):
            for job in range(jobs):
                env.process(engine.work(f"job {job}", seconds / jobs))
        env.run()
        together = overlapped(compute_s, exchange_s, kappa=0.15, eta=0.7)
        assert record.end_s == pytest.approx(together.seconds)
    env, record = simpy.Environment(), Record()
    alone, idle = Engine(env, record, "compute"), Engine(env, record, "port")
    alone.slow_beside(idle, 0.85)
    env.process(alone.work("job", compute_s))
    env.run()
    assert record.end_s == pytest.approx(compute_s)


# ---------------------------------------------------------------------- a step


@pytest.mark.parametrize("name", QUESTIONS)
def test_predict_laws_a_play_is_near_its_closed_form(name: str, catalogue: Catalogue) -> None:
    """E10 to E13. Goal: within a tenth; a play is as long as its record, and is not shorter than
    what any of its resources needs."""
    asked = question(QUESTIONS[name], catalogue)
    record, closed = play_units(asked), asked.answer()
    assert record.end_s == pytest.approx(closed.seconds, rel=DIFFERS)
    assert replay(asked).step_s == record.end_s
    assert agreement(record.end_s, closed.seconds).startswith("; the closed form has ")
    units, m = units_of(asked.job), asked.job.micro_batches
    compute_s = m * sum(unit.forward_s + unit.backward_s for unit in units)
    assert record.busy_s(COMPUTE) >= compute_s * (1 - 1e-9)
    assert record.amount(PORT_IN) == record.amount(PORT_OUT)
    assert record.busy_s(PORT_OUT) >= record.amount(PORT_OUT) * (1 - 1e-9)


@pytest.mark.parametrize("name", QUESTIONS)
def test_predict_laws_every_unit_is_computed_once_each_way(name: str, catalogue: Catalogue) -> None:
    """Goal: conservation: an engine is at one job at a time; a micro-batch goes through each unit
    forward and back, in this order; sharded units are gathered before each and reduced after."""
    asked = question(QUESTIONS[name], catalogue)
    record = play_units(asked)
    for engine in (COMPUTE, PORT_OUT, PCIE, READ, HOST, WRITE):
        spans = sorted(record.of(engine), key=lambda span: (span.start_s, span.end_s))
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(spans))
    units, m = units_of(asked.job), asked.job.micro_batches
    counts = Counter((span.job, dict(span.fields).get("unit")) for span in record.of(COMPUTE))
    for unit in units:
        assert counts["forward", unit.name] == counts["backward", unit.name] == m
    passes = [span for span in record.of(COMPUTE) if span.job != "optimizer"]
    first = [dict(span.fields)["unit"] for span in passes[: len(units)]]
    assert first == [unit.name for unit in units]
    reduced = Counter(span.job for span in record.of(PORT_OUT))
    if asked.system in ("ddp", "atp"):
        assert reduced == {"reduce": len(units)}
        return
    ends = [span.end_s for span in record.of(PORT_OUT) if span.job == "gather"]
    assert ends[0] <= passes[0].start_s + 1e-12
    pieces = 2 if asked.job.software.exposed_gathers else 1
    assert reduced == {"gather": pieces * 2 * m * len(units), "reduce": pieces * m * len(units)}


def test_predict_laws_offloaded_states_pass_through_the_host(catalogue: Catalogue) -> None:
    """E13. Goal: gradients, states and weights take PCIe, processors and drives as long as the
    closed form says, in the order read, update, write; a pipeline of them is shorter."""
    asked = question(QUESTIONS["zero-infinity, weights on drives"], catalogue)
    offload, job = asked.part, asked.job
    assert offload is not None
    record, stage = play_units(asked), optimizer_stage(job, offload)  # type: ignore[arg-type]
    gradients_s, read_s = moved_in_backward(job, offload)  # type: ignore[arg-type]
    m = job.micro_batches
    assert record.busy_s(HOST) == pytest.approx(stage["processor"])
    assert record.busy_s(WRITE) == pytest.approx(stage["disk write"])
    assert record.busy_s(READ) == pytest.approx(stage["disk read"] + m * read_s)
    assert record.busy_s(PCIE) == pytest.approx(stage["PCIe"] + m * gradients_s)
    begins = {}
    for engine, name in ((READ, "read"), (HOST, "update"), (WRITE, "write"), (PCIE, "upload")):
        spans = [span for span in record.of(engine) if span.job == name]
        begins[name] = [span.start_s for span in spans if dict(span.fields)["unit"] == "head"]
    assert begins["read"] < begins["update"] < begins["write"] < begins["upload"]
    assert begins["read"][0] >= max(span.end_s for span in record.of(COMPUTE))
    pipelined = question(QUESTIONS["zero-infinity, pipelined"], catalogue)
    plain = question(DEEPSPEED, catalogue)
    assert play_units(pipelined).end_s < play_units(plain).end_s


def test_predict_laws_more_of_anything_is_never_shorter() -> None:
    """Goal: a step takes longer with each of its parts, by no more than that part alone."""
    units = [
        Unit(name=f"unit {n}", parameters=1.0 + n, forward_s=0.1, backward_s=0.2) for n in range(6)
    ]
    plain = DataParallelStep(units=units, micro_batches=2, gather_s=0.3, reduce_s=0.3)
    stage = {"PCIe": 0.1, "processor": 0.2, "disk read": 0.3, "disk write": 0.3}
    base_s = play_data_parallel(plain).end_s
    for more, most in (
        ({"gather_s": 0.6}, 4 * 0.3), ({"reduce_s": 0.6}, 2 * 0.3), ({"optimizer_s": 0.5}, 0.5),
        ({"read_s": 0.5}, 4 * 0.5), ({"offload_s": 0.5}, 2 * 0.5), ({"stage_s": stage}, 0.9),
        ({"open_ratio": 1.0}, 6 * 0.3),
    ):  # fmt: skip
        longer_s = play_data_parallel(replace(plain, **more)).end_s  # type: ignore[arg-type]
        assert base_s < longer_s <= base_s + most + 1e-9, more
    alone = DataParallelStep(units=units, micro_batches=2)
    assert play_data_parallel(alone).end_s == pytest.approx(2 * 6 * 0.3)


def test_predict_laws_a_play_that_differs_is_believed(catalogue: Catalogue) -> None:
    """Goal: where drives and ports both take longer than compute the closed form adds them, and
    the play has them at work at once: it says which of the two to believe."""
    table = QUESTIONS["zero-infinity, weights on drives"]
    slow = {**table, "host": {**table["host"], "disks": 1}, "devices": 16, "micro_batch": 1}
    asked = question(slow, catalogue)
    played_s, closed_s = play_units(asked).end_s, asked.answer().seconds
    assert 0.8 < played_s / closed_s < 0.9
    assert agreement(played_s, closed_s).endswith(
        f"the closed form has {closed_s:.3f} s: believe the play, which knows what waits for what"
    )
    assert "believe" not in agreement(1.09, 1.0)


def test_predict_laws_two_plays_are_identical(catalogue: Catalogue) -> None:
    """Goal: nothing random."""
    asked = question(DEEPSPEED, catalogue)
    assert play_units(asked) == play_units(asked)


def test_predict_laws_a_taper_is_played(catalogue: Catalogue) -> None:
    """Goal: a topology that leaves less of a port makes the play longer, as it does the closed
    form."""
    table = {**FSDP, "network": "roce-100g"}
    clos = {"kind": "clos", "radix": 64, "taper": 4}
    plain, tapered = (question(t, catalogue) for t in (table, {**table, "topology": clos}))
    played = [play_units(each).end_s for each in (plain, tapered)]
    closed = [each.answer().seconds for each in (plain, tapered)]
    assert played[1] / played[0] == pytest.approx(closed[1] / closed[0], rel=0.05)
    assert played[1] > played[0]


# ---------------------------------------------------------------------- the commands


@pytest.mark.feature("steps of all training systems, simulated, drawn and traced")
@pytest.mark.parametrize(("name", "rows"), [
    ("zero3", ["compute", "port in", "port out"]),
    ("zero-infinity", [
        "compute", "port in", "port out", "PCIe", "disk read", "host", "disk write",
    ]),
    ("ddp", ["compute", "port in", "port out"]),
])  # fmt: skip
def test_systems_are_drawn_and_traced(
    name: str, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: `step --svg` has a row for each engine that is used, `timeline` the same spans of one
    device, both with the closed form beside the play."""
    table = {**QUESTIONS[name], "model": "GPT-1.3B", "devices": 8, "batch": 64}
    file, svg, out = (tmp_path / each for each in ("a.toml", "a.svg", "a.json"))
    file.write_text(toml_text(table), encoding="utf-8")
    assert main(["predict", "step", str(file), "--svg", str(svg)]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "unit by unit" in each]
    assert "; the closed form has " in line
    drawn = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [each for each in texts if each in rows] == rows
    run = tmp_path / "run"
    words = ["predict", "timeline", str(file), "--out", str(out), "--run-dir", str(run)]
    assert main(words) == 0
    assert ", unit by unit; the closed form has " in capsys.readouterr().out
    slices = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    names = {each["cat"] for each in slices}
    assert {"compute", "reduce"} <= names
    assert {"read", "update", "write", "upload", "offload"} <= names or name != "zero-infinity"
    assert main(["trace", "--summary", str(run)]) == 0


def test_predict_laws_plays_are_near_on_any_network(catalogue: Catalogue) -> None:
    """Goal: closed form and play are within a tenth of each other also where ports are ten times
    slower or faster, whatever limits the step."""
    random = Random(1)
    for _ in range(40):
        asked = question(random.choice(list(QUESTIONS.values())), catalogue)
        network = asked.job.network
        network = replace(network, rate=network.rate * 10 ** random.uniform(-1, 1))
        asked = replace(asked, job=replace(asked.job, network=network))
        assert play_units(asked).end_s == pytest.approx(asked.answer().seconds, rel=DIFFERS)


@pytest.mark.feature("steps of all training systems, simulated, drawn and traced")
def test_systems_are_drawn_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: `compare --svg` has the rows of each file below its system, over the time of the
    longest step; a question without steps is refused."""
    files = []
    for system in ("luwu", "zero3", "ddp"):
        table = {**DDP, "system": system, "devices": 8, "batch": 64, "software": "deepspeed-2023"}
        if system == "luwu":
            table["node"] = {key: value for key, value in HOST_TABLE.items() if key != "devices"}
        files.append(tmp_path / f"{system}.toml")
        files[-1].write_text(toml_text(table), encoding="utf-8")
    svg = tmp_path / "steps.svg"
    words = ["predict", "compare", *map(str, files), "--svg", str(svg)]
    assert main(words) == 0
    said = [each for each in capsys.readouterr().out.splitlines() if each.startswith("timeline")]
    assert [each.split(", ")[0] for each in said] == [f"timeline  {svg}: {file}" for file in files]
    drawn = ElementTree.fromstring(svg.read_text(encoding="utf-8"))
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    heads = [texts.index(head) for head in ("luwu:", "zero3:", "ddp:")]
    assert heads == sorted(heads)
    assert [texts[at] for at in range(len(texts)) if texts[at] == "compute"] == ["compute"] * 3
    files[0].write_text(toml_text(INFERENCE), encoding="utf-8")
    assert main(words) == 2
    assert "svg: steps of training are drawn, not inference" in capsys.readouterr().err
