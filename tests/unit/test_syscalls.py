"""Faults at system calls: what strace does to a call, and a share of the campaign."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.syscalls import __main__ as campaign
from tests.syscalls import story, tracing
from tests.syscalls.story import Child, Place
from tests.syscalls.tracing import Call
from tests.syscalls.trials import Stage, Violated

pytestmark = pytest.mark.skipif(
    not tracing.is_installed(), reason="strace is not installed, or may not trace here"
)


@pytest.mark.parametrize(
    ("fault", "code", "is_made"),
    [("kill before", -9, False), ("kill after", -6, True), ("EIO", 17, False)],
)
def test_what_a_fault_does_to_a_call(
    tmp_path: Path, fault: tracing.Fault, code: int, is_made: bool
) -> None:
    """Goal: the second rename is not made, or made and its result never seen, or refused by the
    system; and calls on other files are not counted."""
    gate, opener = os.pipe()

    def work() -> int:
        os.read(gate, 1)
        for name in ("other", "one", "two"):
            (tmp_path / name).touch()
        os.rename(tmp_path / "other", tmp_path / "another")
        try:
            for name in ("one", "two"):
                os.rename(tmp_path / name, tmp_path / f"{name}.new")
        except OSError as error:
            return 17 if error.errno == 5 else 1
        return 0

    child = Child(work, tmp_path / "log")
    call = Call(child.pid, "rename", 2, str(tmp_path / "two"), True)
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    tracer = tracing.inject(child.pid, tmp_path / "strace", call, fault, paths)
    os.write(opener, b"g")
    assert child.wait("the child") == code
    assert (tmp_path / "one.new").exists()
    assert (tmp_path / "two.new").exists() == is_made
    assert any("(INJECTED)" in line for line in tracer.lines()) == (fault == "EIO")


@pytest.mark.timeout(600)
def test_a_share_of_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """O1, O2, I1, I2, I3. Goal: no decided step is lost and training ends with the same weights,
    whatever the node was doing. Method: every 37th of all trials, whose number is no multiple of
    the faults of a call, so that all kinds come up."""
    code = campaign.main(["--stride", "37"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].endswith(" trials, 0 violations")


def test_a_campaign_would_notice(tmp_path: Path) -> None:
    """O7. Goal: what the trials look for can be found missing. Method: a node whose store takes
    flushes that failed for flushes, at the flush of its last step's pages."""
    stage = Stage(tmp_path)
    trials = stage.trials(["eio"])
    flush = next(
        trial for trial in trials if trial.phase == "work" and trial.call.name == "fdatasync"
    )
    assert stage.run(flush)
    start = story.start_node

    def careless(place: Place, number: int, **options: object) -> Child:
        fdatasync = os.fdatasync

        def forgiving(descriptor: int) -> None:
            try:
                fdatasync(descriptor)
            except OSError:
                fdatasync(descriptor)  # "the second may succeed": it does

        os.fdatasync = forgiving
        try:
            return start(place, number, **options)  # type: ignore[arg-type]
        finally:
            os.fdatasync = fdatasync

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "start_node", careless)
        with pytest.raises(Violated, match="V1: the node ended with 0"):
            stage.run(flush)


def test_trials_are_the_same_in_every_run(tmp_path: Path) -> None:
    """Goal: --first goes on where a campaign was stopped."""
    names = []
    for directory in (tmp_path / "a", tmp_path / "b"):
        directory.mkdir()
        names.append([str(trial) for trial in Stage(directory).trials(["kill", "eio"])])
    first, second = names
    assert first == second
    assert len(set(first)) > 350
