"""A small share of each campaign but that of system calls, and how all are done in shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luwu.launch.local_cluster import LocalCluster
from luwu.wire.altered import AlteredWeights, WeightsAlteredError
from luwu.wire.codec import decode
from luwu.wire.messages import MESSAGE_TYPES
from switch_emu.process import places
from tests import campaign, crash_images, flips, planted
from tests.campaign import Campaign
from tests.flips import PLACES, REPLICAS, WEIGHTS, Trial
from tests.fuzz import files, headers, live
from tests.helpers.local_job import LARGE, Worker
from tests.planted import BUGS, Bug, try_bug
from tests.simulate.__main__ import main as simulate


@pytest.mark.parametrize("seed", range(4))
def test_crash_images(seed: int) -> None:
    """P2, P5. Goal: whatever subset of unsynced blocks is there, torn or with a rotten twin, the
    store opens at what was promised, and goes on. All of them: `python -m tests.crash_images`."""
    result = crash_images.try_story(seed, images_max=400)
    assert result.images_count == 400
    assert result.violations == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    """Goal: the program has not moved away below `tests/planted.py`, and every bug changes it."""
    text = (planted.ROOT / bug.file).read_text()
    assert bug.planted(text) != text


def test_a_planted_bug_is_found() -> None:
    """O7. Goal: the suite fails where the program is wrong. All of them: `python -m tests.planted`.
    Method: plant it in a copy of the tree, run there what is there to find it."""
    bug = next(bug for bug in BUGS if bug.file == "switch_emu/switch/core/slots.py")
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


# ---------------------------------------------------------------------- flipped bits


OUTCOMES = {
    "disk": {"checksum"}, "memory": {"made again", "named", "E509", "no effect"},
    "gradient": {"made again", "named", "E509", "no effect"}, WEIGHTS: {"asked for again"},
}  # fmt: skip


@pytest.mark.feature("a bit that flips in one replica")
@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    """E7, I3. Goal: it is found before its step is decided, and no decided version has other
    weights than plain training."""
    trial = Trial.drawn(seed, PLACES)
    assert flips.run(trial, tmp_path) in OUTCOMES[trial.place]


def test_workers_check_what_the_switch_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: weights that are altered in the switch's memory are found by each worker, and asked
    for again. Method: the switch does not look at what it receives."""
    looked, found = AlteredWeights.has, []

    def has(self: AlteredWeights, message: Any, data: memoryview) -> bool:
        if self._receiver == "the switch":
            return False
        is_altered = looked(self, message, data)
        if is_altered:
            found.append(self._receiver)
        return is_altered

    monkeypatch.setattr(AlteredWeights, "has", has)
    monkeypatch.setattr(flips, "judge", lambda *_: "")
    flips.run(Trial.drawn(0, [WEIGHTS]), tmp_path)
    assert {*found} == {"worker 0", "worker 1"}  # again, if it was asked for twice


def test_weights_that_are_always_altered_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what comes altered again and again is never used; the message says who states what.
    Method: the node states the checksum of other weights."""
    monkeypatch.setattr(places, "checksum_of", lambda data: 7)
    trial = Trial.drawn(0, [WEIGHTS])
    with LocalCluster(
        world_size=trial.job.world_size, state=tmp_path / "state", summary=tmp_path / "summary",
        memory_budget_bytes=LARGE, chunk_bytes=trial.job.layout.chunk_bytes,
        optimizer_nodes=trial.optimizer_nodes, replicas=REPLICAS,
    ) as cluster:  # fmt: skip
        said = r"weights of extent \d+ for step \d came to the switch altered 4 times"
        with pytest.raises(WeightsAlteredError, match=said):
            cluster.run(Worker(trial.job))


# ---------------------------------------------------------------------- what is hostile


PATIENT_S = 60.0
"""A busy machine is no hang."""
PATIENT_NS = int(PATIENT_S * 1e9)


@pytest.mark.feature("hostile headers, messages and files")
def test_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is wrong with 20,000 headers, which reach every type of message."""
    reached = set()

    def seen(header: bytes, payload_count: int) -> Any:
        message = decode(header, payload_count)
        reached.add(type(message))
        return message

    monkeypatch.setattr(headers, "decode", seen)
    assert list(headers.fuzz_headers(1, 0, 20_000, hang_ns=PATIENT_NS)) == []
    assert reached == set(MESSAGE_TYPES)


@pytest.mark.feature("hostile headers, messages and files")
def test_files(tmp_path: Path) -> None:
    """Goal: whatever stands in the place of a file, each reader of one ends with a sentence, and
    waits for nothing; what is imported is what was exported. Method: 500 cases, from a seed."""
    assert list(files.fuzz_files(1, 0, 500, tmp_path, hang_ns=PATIENT_NS)) == []


@pytest.mark.faults(29)
@pytest.mark.feature("hostile headers, messages and files")
def test_live(tmp_path: Path) -> None:
    """I1, I3. Goal: 1,000 messages of a stranger change no bit of a job that trains meanwhile."""
    assert list(live.fuzz_live(1, 0, 1000, tmp_path, hang_s=PATIENT_S)) == []
