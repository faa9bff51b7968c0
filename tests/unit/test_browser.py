"""Pages in a real browser: text that can be read, and nothing cut off or over other things; the
sliders of a sweep.

Marked `browser`, and skipped where there is none: Chromium, as Debian's package or Google's.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luwu.base.config import RunConfig
from luwu.base.json_file import write_json
from luwu.commands.predict_sweep_page import sweep_page
from luwu.compare.comparison import comparison
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from luwu.predict.ask.sweep import parse_axis
from luwu.predict.ask.sweep import sweep as sweep_of
from luwu.predict.hardware.catalogue import load
from luwu.report.page import report_html
from tests.unit.test_predict_sweep import LUWU
from tests.unit.test_report import arm
from tests.unit.written_run import MS, Written

_NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]
LIMIT_S = 120

MEASURE = Path(__file__).with_name("measure_page.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with everything on it."""
    run = RunDirectory.create(tmp_path_factory.mktemp("browser") / "run")
    written = Written(run.path / "events")
    for step in range(30):
        written.step(step)
    written.append("node", {"name": "node.abort", "at_ns": 999 * MS, "step": 9, "text": "a peer"})
    write_json(run.file("memory.json"), {
        "schema": 1, "now_bytes": {}, "peak_bytes_of_all": 9 << 20,
        "peak_bytes": {"worker-0": 200 << 20, "worker-1": 201 << 20, "node": 9 << 20},
    })  # fmt: skip
    write_json(run.role("node.json"), {"spec": {"memory_budget_bytes": 16 << 20}})
    arms = [arm("luwu"), arm("luwu_ram", node=arm("luwu").node), arm("fsdp"), arm("ddp")]
    write_json(run.file("result.json"), comparison(RunConfig(), arms))
    return report_html(Watch(run).document())


@pytest.fixture(scope="module")
def sweep() -> str:
    """The page of a sweep over three keys, with systems side by side and points without an
    answer."""
    axes = [parse_axis(each) for each in ("devices=8,12,4", "node.disks=4,12", "system=luwu,zero3")]
    return sweep_page(sweep_of(LUWU, axes, load()), "step_s")


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What the browser shows of a page in a window of some width, in the light or the dark scheme;
    `script` finds it."""

    def look(page: str, width: int, is_dark: bool, script: str = MEASURE) -> dict[str, Any]:
        outer = (
            f'<!DOCTYPE html><body style="margin:0"><iframe style="border:0;width:{width}px;height:'
            f'3000px" srcdoc="{html.escape(page)}"></iframe><script>addEventListener("load",()=>{{'
            f"{script}\n}})</script></body>"
        )
        file = tmp_path / "outer.html"
        file.write_text(outer, encoding="utf-8")
        assert BROWSER is not None
        done = subprocess.run(
            [
                BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,3000", "--dump-dom",
                f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", file.as_uri(),
            ],
            capture_output=True, text=True, timeout=LIMIT_S, check=True,
        )  # fmt: skip
        found = re.search(r"found:(.*):found", done.stdout, re.DOTALL)
        assert found is not None, done.stderr[-2000:]
        measured: dict[str, Any] = json.loads(html.unescape(found[1]))
        return measured

    return look


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 700, 1280])
@pytest.mark.parametrize(("name", "texts"), [("page", 100), ("sweep", 50)])
def test_pages_can_be_read(
    look: Callable[..., dict[str, Any]], request: pytest.FixtureRequest, name: str, texts: int,
    width: int, is_dark: bool,
) -> None:  # fmt: skip
    """Goal: of the report and of a sweep's page no text under 11 px or under 4.5:1, none cut off or
    over another, no page that must be moved sideways."""
    found = look(request.getfixturevalue(name), width, is_dark)
    assert len(found["texts"]) > texts
    assert [each for each in found["texts"] if each["px"] < 11] == []
    assert [each for each in found["texts"] if each["contrast"] < 4.5] == []
    assert found["cut"] == []
    assert found["overlaps"] == []
    assert found["wide"] <= 0


MOVE = """
const page = document.querySelector("iframe").contentDocument, found = [];
for (const [slider, value] of [[1, 2], [2, 1], [3, 0], [1, 1], [3, 1]]) {
  const input = page.getElementById("slider-" + slider);
  input.value = value;
  input.dispatchEvent(new Event("input"));
  const points = Array.from(page.querySelectorAll("section.point"));
  found.push({
    shown: points.map((each, at) => each.hidden ? -1 : at).filter(at => at !== -1),
    said: page.getElementById(input.id + "-said").textContent,
    aria: input.getAttribute("aria-valuetext"),
    marked: Array.from(page.querySelectorAll("circle.chosen title")).map(each => each.textContent),
    rejected: page.querySelector("section.point:not([hidden])").textContent.includes("Rejected"),
  });
}
document.body.innerHTML = "<pre></pre>";
document.querySelector("pre").textContent = "found:" + JSON.stringify({found}) + ":found";
"""


@pytest.mark.feature("a sweep as one page with sliders")
def test_sliders_choose_a_point(look: Callable[..., dict[str, Any]], sweep: str) -> None:
    """Goal: each slider moves to the point of its value, which alone is shown, and marked in both
    plots; a point without an answer says so, and has no mark."""
    found = look(sweep, 700, False, MOVE)["found"]
    assert [each["shown"] for each in found] == [[8], [10], [10], [6], [7]]
    assert [each["said"] for each in found] == ["4", "12", "luwu", "12", "zero3"]
    assert [each["aria"] for each in found] == [each["said"] for each in found]
    assert [each["rejected"] for each in found] == [False, False, False, True, True]
    for each, name in zip(found[:3], ("4", "12", "12"), strict=True):
        assert [re.split(": ", said)[0] for said in each["marked"]] == [
            f"node.disks {name}, system luwu, 4"
        ] * 2
    assert [each["marked"] for each in found[3:]] == [[], []]
