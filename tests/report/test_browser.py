"""Pages in a real browser: text that can be read, and nothing cut off or over other things.

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
from luwu.compare.comparison import comparison
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from luwu.report.page import report_html
from tests.helpers.written_run import MS, Written
from tests.report.test_report import arm

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


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What the browser shows of a page in a window of some width, in either scheme."""

    def look(page: str, width: int, is_dark: bool) -> dict[str, Any]:
        outer = (
            f'<!DOCTYPE html><body style="margin:0"><iframe style="border:0;width:{width}px;height:'
            f'3000px" srcdoc="{html.escape(page)}"></iframe><script>addEventListener("load",()=>{{'
            f"{MEASURE}\n}})</script></body>"
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
def test_pages_can_be_read(
    look: Callable[..., dict[str, Any]], page: str, width: int, is_dark: bool
) -> None:
    """Goal: of the report no text under 11 px or under 4.5:1, none cut off or over another, no page
    that must be moved sideways."""
    found = look(page, width, is_dark)
    assert len(found["texts"]) > 100
    assert [each for each in found["texts"] if each["px"] < 11] == []
    assert [each for each in found["texts"] if each["contrast"] < 4.5] == []
    assert found["cut"] == []
    assert found["overlaps"] == []
    assert found["wide"] <= 0
