"""A small share of the campaigns: crash images, planted bugs, and that both can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from switch_emu.store.direct_io import BlockFile
from tests import crash_images, planted
from tests.planted import BUGS, Bug, try_bug
from tests.simulate.__main__ import main as simulate


def by_name(name: str) -> Bug:
    return next(bug for bug in BUGS if bug.name == name)


@pytest.mark.parametrize("seed", range(4))
def test_crash_images(seed: int) -> None:
    """P2, P5. Goal: whatever subset of unsynced blocks is there, torn or with a rotten twin, the
    store opens at what was promised, and goes on. All of them: `python -m tests.crash_images`."""
    result = crash_images.try_story(seed, images_max=400)
    assert result.images_count == 400
    assert result.violations == []


def test_crash_images_find_a_missing_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the images can fail. Method: a flush that does nothing."""
    monkeypatch.setattr(BlockFile, "flush", lambda file: None)
    result = crash_images.try_story(1, images_max=400)
    assert any("AssertionError" in text for text in result.violations)


def test_images_are_all_subsets_of_few_blocks() -> None:
    """Goal: of 12 blocks every subset is tried; of 13, none, all, each, each pair, all but one."""
    random = crash_images.Random(0)
    assert len(set(crash_images.kept_sets(12, random))) == 1 << 12
    many = list(crash_images.kept_sets(13, random))
    assert len(many) == 2 + 13 + 13 * 12 // 2 + 13 + crash_images.RANDOM_IMAGES


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    """Goal: the program has not moved away below `tests/planted.py`, and every bug changes it."""
    text = (planted.ROOT / bug.file).read_text()
    assert bug.planted(text) != text


def test_every_bug_has_a_name_of_its_own() -> None:
    """O7."""
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize("name", ["accept duplicate", "no directory sync"])
def test_a_planted_bug_is_found(name: str) -> None:
    """O7. Goal: the suite fails where the program is wrong. All of them: `python -m tests.planted`.
    Method: plant it in a copy of the tree, run there what is there to find it."""
    bug = by_name(name)
    run = try_bug(bug, bug.found_by)
    assert run.returncode == 1, run.tail
    assert "Error" in run.tail


def test_a_bug_without_a_place_is_refused(tmp_path: Path) -> None:
    """Goal: a patch that does not fit is an error, not a bug that nobody found."""
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    bug = Bug("twice", "", "a.py", (("x = 1\n", "x = 2\n"),), ())
    with pytest.raises(ConfigError, match=r"stands 2 times in a\.py"):
        bug.plant(tmp_path)


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
