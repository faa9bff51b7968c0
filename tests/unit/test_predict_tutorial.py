"""docs/tutorial-smartnics.md: its commands print what it shows, and what it concludes is so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from luwu.predict.ask.answer import answer, memory_bytes
from luwu.predict.ask.question import make_question, read_question, read_table
from luwu.predict.ask.sweep import parse_axis, sweep
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.plan.planner import Plan, plan
from tests import tutorial


class Followed(NamedTuple):
    """The page, once all that it says was done."""

    directory: Path
    """With its files."""
    pages: dict[Path, str]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    directory = tmp_path_factory.mktemp("tutorial")
    return Followed(directory, tutorial.pages(tutorial.PAGE.read_text(encoding="utf-8"), directory))


@pytest.fixture(scope="module")
def directory(followed: Followed) -> Path:
    return followed.directory


@pytest.fixture(scope="module")
def catalogue(directory: Path) -> Catalogue:
    return load(directory / "mine.toml")


def test_the_tutorial_shows_what_its_commands_print(followed: Followed) -> None:
    """Goal: outputs and pictures are those of today. Otherwise: python -m tests.tutorial, and read
    whether what it says of them still holds."""
    assert tutorial.stale(followed.pages) == []


def test_predict_laws_of_the_tutorial(directory: Path, catalogue: Catalogue) -> None:
    """Goal: what sections 1 to 5 say of their numbers: the exchange binds; a third faster with
    a fifth of the memory; 100 Gbit/s is worth 200; long steps hide it; drives bind up to a number;
    one node serves all."""
    today, luwu = (
        answer(read_question(directory / f"{name}.toml", catalogue), catalogue)
        for name in ("today", "luwu")
    )
    assert today["binding"] == "exchange"
    assert today["step_s"] / luwu["step_s"] == pytest.approx(4 / 3, abs=0.1)
    memory = [sum(each["memory_bytes"].values()) for each in (today, luwu)]
    assert memory[1] / memory[0] == pytest.approx(1 / 5, abs=0.03)

    table, systems = read_table(directory / "luwu.toml"), parse_axis("system=zero3,luwu")
    rates = [parse_axis("network.rate=100 Gbit/s,200 Gbit/s"), systems]
    (_, fast), (slow, _) = sweep(table, rates, catalogue).curves().values()
    assert 1 < slow / fast < 1.2
    lengths = [parse_axis("micro_batch:batch=4:32,8:64,16:128"), systems]
    zero3, luwu_s = sweep(table, lengths, catalogue).curves().values()
    gains = [a / b for a, b in zip(zero3, luwu_s, strict=True)]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] < 1.5
    drives = sweep(table, [parse_axis("node.disks=4,8,12,16")], catalogue)
    four, eight, twelve, sixteen = drives.curves()[""]
    assert four / eight > 1.9
    assert twelve / sixteen < 1.01
    (growth,) = sweep(table, [parse_axis("devices:batch=8:32,64:256")], catalogue).curves().values()
    assert growth[1] / growth[0] < 1.02


def test_predict_laws_of_the_decision(directory: Path, catalogue: Catalogue) -> None:
    """Goal: what sections 6 and 7 conclude: pipelines are as fast at 13 B; at 22 B nothing but LuWu
    is left on eight hosts, though ZeRO-Infinity fits; on sixteen both are as fast."""
    small, large, more = (
        _plan(directory, catalogue, name) for name in ("plan", "plan-22b", "plan-22b-16")
    )
    for found in (small, more):
        assert _best(found, "3d") / _best(found, "luwu") == pytest.approx(1, abs=0.1)
    assert {each.question.system for each in large.best} == {"luwu"}
    table = read_table(directory / "plan-22b.toml")
    offload: dict[str, Any] = {
        key: value for key, value in table.items() if key not in ("systems", "node")
    }
    offload |= {"system": "zero-infinity", "software": "deepspeed-2023", "recompute": "full"}
    question = make_question({**offload, "micro_batch": 8}, catalogue)
    assert sum(memory_bytes(question).values()) < question.job.device.memory_bytes
    assert question.answer().seconds > large.best[0].step.seconds
    assert more.best[0].tokens_per_s > large.best[0].tokens_per_s


def _plan(directory: Path, catalogue: Catalogue, name: str) -> Plan:
    return plan(read_table(directory / f"{name}.toml"), catalogue)


def _best(found: Plan, system: str) -> float:
    return next(each.tokens_per_s for each in found.best if each.question.system == system)
