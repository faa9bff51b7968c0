"""`make demo`, as it stands: in RAM and out of core, it learns."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from tests.helpers.command_line import demo
from tests.processes.commands import Terminal

SECONDS_MAX = 240.0


@pytest.mark.slow
@pytest.mark.feature("one job in RAM and out of core, side by side")
@pytest.mark.timeout(SECONDS_MAX + 30)
def test_demo_learns_in_ram_and_out_of_core_within_four_minutes(shell: Terminal) -> None:
    """Goal: all arms end with a loss below 2.6, luwu's node with an eighth of the state in memory
    (the kernel saw the bytes that were counted), luwu_ram's with all of it, and both with the same
    bits."""
    started = shell.start(*demo(), "--json", "demo.json", OMP_NUM_THREADS="")
    assert started.wait(SECONDS_MAX) == 0, started.err

    document = json.loads((shell.directory / "demo.json").read_text())
    arms = {arm["name"]: arm for arm in document["arms"]}
    assert list(arms) == ["luwu", "luwu_ram", "fsdp"]
    for arm in arms.values():
        assert arm["loss"][0] > 5.0
        assert sum(arm["loss"][-20:]) / 20 < 2.6
    luwu, in_ram = arms["luwu"], arms["luwu_ram"]
    state_bytes = 12 * document["job"]["parameters"]
    assert luwu["memory_budget_bytes"] <= state_bytes / 8
    assert in_ram["memory_budget_bytes"] > 2 * state_bytes
    assert in_ram["disk_space_bytes"] == 0
    assert in_ram["disk_bytes"] in (None, {"read": 0, "written": 0})
    assert in_ram["weights_digest"] == luwu["weights_digest"]
    assert in_ram["loss"] == luwu["loss"]
    assert "luwu, luwu_ram and fsdp end with the same weights, bit for bit" in started.out
    counted, kernel = luwu["disk_bytes"], luwu["disk_bytes_kernel"]
    steps = document["job"]["steps"]
    assert min(counted.values()) > steps * state_bytes / 2
    if kernel["written"]:  # else the file system is not on a block device
        for way in ("read", "written"):
            cached = luwu["spill_bytes"][way]
            assert kernel[way] >= 0.98 * (counted[way] - cached)

    report = re.search(r"^report  (.*)$", started.err, re.MULTILINE)
    assert report is not None
    ElementTree.parse(report[1])  # one file, every tag closed
