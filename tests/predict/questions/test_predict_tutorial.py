"""docs/tutorial-smartnics.md: its commands print what it shows, and what it concludes is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from luwu.commands import plan as plan_command
from luwu.predict.ask.answer import answer
from luwu.predict.ask.keys import table_of, with_assumed
from luwu.predict.ask.question import make_question, read_table
from luwu.predict.ask.sweep import Axis, parse_axis, sweep
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.plan.planner import Plan, plan
from tests import tutorial

LINE = {
    "model": "llama3-70b", "devices": "64xh100-80", "network": "roce-100g", "batch": "256",
}  # fmt: skip
SYSTEMS = {
    "zero3": {"micro_batch": "2"}, "luwu": {"micro_batch": "2"},
    "3d": {"tensor": "8", "pipeline": "4", "virtual": "5"},
}  # fmt: skip


class Followed(NamedTuple):
    """The page, once all that it says was done."""

    directory: Path
    """With its files."""
    page: str


SEARCHED: list[tuple[dict[str, Any], Catalogue, Plan]] = []


def _once(table: dict[str, Any], catalogue: Catalogue) -> Plan:
    """A plan, searched once: the page's commands and its decision ask for the same ones."""
    for *asked, found in SEARCHED:
        if asked == [table, catalogue]:
            return found
    found = plan(table, catalogue)
    SEARCHED.append((dict(table), catalogue, found))
    return found


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    directory = tmp_path_factory.mktemp("tutorial")
    text = tutorial.PAGE.read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_command, "plan", _once)
        return Followed(directory, tutorial.made(text, directory))


@pytest.fixture(scope="module")
def directory(followed: Followed) -> Path:
    return followed.directory


def test_the_tutorial_shows_what_its_commands_print(followed: Followed) -> None:
    """Goal: outputs are those of today. Otherwise: python -m tests.tutorial, and read
    whether what it says of them still holds."""
    assert followed.page == tutorial.PAGE.read_text(encoding="utf-8")


def _step(catalogue: Catalogue, system: str, nics: int, **node: Any) -> dict[str, Any]:
    flags = {**LINE, **SYSTEMS[system], "system": system, "nics_per_host": str(nics)}
    table, _ = with_assumed(table_of(flags, catalogue))
    if node:
        table["node"] |= node
    return answer(make_question(table, catalogue))


def test_predict_laws_of_the_three_questions(catalogue: Catalogue) -> None:
    """Goal: what sections 1 to 3 and the decision say: the exchange binds with one NIC and not with
    eight; LuWu that sends to each GPU is four times slower with one, and with one per host a third
    shorter; with eight it is slower than FSDP until the node has a faster port; 3-D is faster."""
    for nics, binding in ((1, "exchange"), (8, "products")):
        fsdp = _step(catalogue, "zero3", nics)
        assert fsdp["binding"] == binding
        three_d = _step(catalogue, "3d", nics)
        assert three_d["fits"]
        once = _step(catalogue, "luwu", nics, per_host="pull-and-push")
        assert three_d["step_s"] * (1 + fsdp["error"]["max"]) < min(
            fsdp["step_s"], once["step_s"]
        )  # fmt: skip
    one = _step(catalogue, "zero3", 1)["step_s"]
    assert _step(catalogue, "luwu", 1)["step_s"] / one == pytest.approx(4.5, abs=0.5)
    once = _step(catalogue, "luwu", 1, per_host="pull-and-push")["step_s"]
    assert once / one == pytest.approx(2 / 3, abs=0.05)
    eight = _step(catalogue, "zero3", 8)["step_s"]
    assert _step(catalogue, "luwu", 8, per_host="pull-and-push")["step_s"] > 1.2 * eight
    fast = _step(catalogue, "luwu", 8, per_host="pull-and-push", network="roce-400g")["step_s"]
    assert fast / eight == pytest.approx(1, abs=0.05)


def test_predict_laws_of_the_file(directory: Path, catalogue: Catalogue) -> None:
    """Goal: what sections 4 to 6 say: what LuWu does at 100 Gbit/s FSDP does at 200; long steps
    hide the exchange; drives bind up to a number; the node's port helps eight NICs alone."""
    table, systems = read_table(directory / "luwu.toml"), parse_axis("system=zero3,luwu")
    rates = [parse_axis("network.rate=100 Gbit/s,200 Gbit/s"), systems]
    _, slow, fast, _ = _steps(table, rates, catalogue)
    assert fast / slow == pytest.approx(1, abs=0.1)
    lengths = [parse_axis("micro_batch:batch=1:64,2:128,4:256"), systems]
    steps = _steps(table, lengths, catalogue)
    zero3, luwu_s = steps[::2], steps[1::2]
    gains = [a / b for a, b in zip(zero3, luwu_s, strict=True)]
    assert min(gains[:2]) > 1.25 * gains[2]
    drives = [parse_axis("node.disks=2,4,8,12,16")]
    two, four, eight, twelve, sixteen = _steps(table, drives, catalogue)
    assert two > 1.5 * four > 1.8 * eight
    assert twelve / sixteen < 1.01
    ports = [parse_axis("node.network=roce-100g,roce-400g"), parse_axis("nics_per_host=1,8")]
    steps = _steps(table, ports, catalogue)
    one, many = steps[::2], steps[1::2]
    assert one[0] == one[1]
    assert many[1] < 0.8 * many[0]


def _steps(table: dict[str, Any], axes: list[Axis], catalogue: Catalogue) -> list[float]:
    return [number or 0.0 for number in sweep(table, axes, catalogue).numbers()]


def test_predict_laws_of_the_decision(directory: Path, catalogue: Catalogue) -> None:
    """Goal: what sections 7 and 8 conclude, for one NIC and for eight: nothing but LuWu fits 405 B
    on eight hosts; on sixteen 3-D fits, and eight with LuWu do the work of less than three."""
    for nics in (1, 8):
        small, large = (
            _plan(directory, catalogue, name, nics) for name in ("plan", "plan-128")
        )  # fmt: skip
        assert {each.question.system for each in small.best} == {"luwu"}
        assert large.best[0].question.system == "3d"
        assert 16 * small.best[0].tokens_per_s / large.best[0].tokens_per_s < 3


def _plan(directory: Path, catalogue: Catalogue, name: str, nics: int) -> Plan:
    return _once(read_table(directory / f"{name}.toml") | {"nics_per_host": nics}, catalogue)
