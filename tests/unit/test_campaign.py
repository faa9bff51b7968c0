"""All campaigns in shares: what is done is not done again, and what goes wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import campaign
from tests.campaign import CAMPAIGNS, Campaign, shares_of

SCRIPT = """
import sys
trials, violations, code, _ = sys.argv[1:]
print(f"{trials} trials, {violations} violations")
raise SystemExit(int(code))
"""


class Runs:
    """Runs campaigns of two shares whose program says what it is told to."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        monkeypatch.setattr(campaign, "ROOT", root)
        (root / "said.py").write_text(SCRIPT)

    def __call__(self, words: str) -> int:
        """One of them; its exit code."""
        one = Campaign("some", "said", 2, 5, words + " {share}")
        self._monkeypatch.setattr(campaign, "CAMPAIGNS", (one,))
        return campaign.main(["--directory", str(self.root / "progress"), "--jobs", "1"])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_a_share_is_done_once(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a campaign that was stopped goes on, and one on another program begins again."""
    assert runs("5 0 0") == 0
    assert "some: 10 trials, 0 violations\n" in capsys.readouterr().out
    (runs.root / "said.py").unlink()
    assert runs("5 0 0") == 0
    assert capsys.readouterr().out.endswith("\n10 trials, 0 violations\n")
    (runs.root / "luwu").mkdir()
    (runs.root / "luwu" / "new.py").touch()
    assert runs("5 0 0") == 1  # and its program is not there any more
    assert capsys.readouterr().out.endswith("\n0 trials, 2 violations\n")


@pytest.mark.parametrize(
    ("words", "last"),
    [("5 1 1", "10 trials, 2 violations"), ("5 0 3", "10 trials, 2 violations"),
     ("5 1 0", "10 trials, 4 violations"), ("x 0 0", "0 trials, 2 violations")],
    ids=["violations", "exit code", "both at odds", "no verdict"],
)  # fmt: skip
def test_what_goes_wrong_is_told(
    runs: Runs, capsys: pytest.CaptureFixture[str], words: str, last: str
) -> None:
    """Goal: a violation, a program that dies, and one without a verdict end in exit code 1; what
    was printed is there to read, and the share is done again."""
    for _ in range(2):
        assert runs(words) == 1
        assert capsys.readouterr().out.endswith(f"\n{last}\n")
    assert "trials," in (runs.root / "progress" / "some-0.log").read_text()


def test_shares_are_the_whole() -> None:
    """Goal: all shares together are what docs/reliability.md says, and none is done twice."""
    counts = {one.name: one.shares * one.each for one in CAMPAIGNS}
    assert counts["histories"] == 20_000
    assert counts["crash images"] == 100_000
    assert [counts[f"kill {role}"] for role in ("node", "worker", "switch")] == [300, 100, 100]
    assert counts["fuzzed headers"] == 10**7
    assert counts["predictions"] == 100_000
    keys = [share.key for one in CAMPAIGNS for share in shares_of(one, 1.0)]
    assert len(set(keys)) == len(keys)
    small = [share for one in CAMPAIGNS for share in shares_of(one, 0.001)]
    assert len(small) == len(CAMPAIGNS)
    assert small[1].key == "tests.simulate --seeds 20 --first 0 --processes 1"
