"""A small share of the campaigns: crash images, planted bugs, and all in shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import campaign, crash_images, planted
from tests.campaign import Campaign
from tests.planted import BUGS, Bug, try_bug
from tests.simulate.__main__ import main as simulate


@pytest.mark.parametrize("seed", range(4))
def test_crash_images(seed: int) -> None:
    """P2, P5. Goal: whatever subset of unsynced blocks is there, torn or with a rotten twin, the
    store opens at what was promised, and goes on. All of them: `python -m tests.crash_images`."""
    result = crash_images.try_story(seed, images_max=400)
    assert result.images_count == 400
    assert result.violations == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    """Goal: the program has not moved away below `tests/planted.py`, and every bug changes it."""
    text = (planted.ROOT / bug.file).read_text()
    assert bug.planted(text) != text


def test_a_planted_bug_is_found() -> None:
    """O7. Goal: the suite fails where the program is wrong. All of them: `python -m tests.planted`.
    Method: plant it in a copy of the tree, run there what is there to find it."""
    bug = next(bug for bug in BUGS if bug.name == "accept duplicate")
    run = try_bug(bug, bug.found_by)
    assert run.returncode == 1, run.tail
    assert "Error" in run.tail


def test_the_command_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the last line counts trials and violations, and the exit code says the same."""
    monkeypatch.setattr("sys.argv", ["simulate", "--seeds", "8", "--processes", "1"])
    assert simulate() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "8 trials, 0 violations"
    more = ["--with", "LoseNode", "--first", "100"]
    monkeypatch.setattr("sys.argv", ["simulate", "--seeds", "3", "--processes", "1", *more])
    assert simulate() == 0
    *_, struck, _, last = capsys.readouterr().out.splitlines()
    assert last == "3 trials, 0 violations"
    assert " LoseNode" in struck


def test_a_share_is_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a campaign that was stopped goes on, and one on another program begins again."""
    program = tmp_path / "said.py"
    program.write_text('print("5 trials, 0 violations")\n')
    monkeypatch.setattr(campaign, "ROOT", tmp_path)
    monkeypatch.setattr(campaign, "CAMPAIGNS", (Campaign("some", "said", 2, 5, "{share}"),))
    words = ["--directory", str(tmp_path / "progress"), "--jobs", "1"]
    assert campaign.main(words) == 0
    assert "some: 10 trials, 0 violations\n" in capsys.readouterr().out
    program.unlink()
    assert campaign.main(words) == 0
    assert capsys.readouterr().out.endswith("\n10 trials, 0 violations\n")
    (tmp_path / "luwu").mkdir()
    (tmp_path / "luwu" / "new.py").touch()
    assert campaign.main(words) == 1  # and its program is not there any more
    assert capsys.readouterr().out.endswith("\n0 trials, 2 violations\n")
