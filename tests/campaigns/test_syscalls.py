"""Faults at system calls: what each file of a job does then, and a share of the campaign."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from luwu.base.directories import making_directory
from luwu.base.errors import StateError, StoreFullError
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.directory import Claim
from switch_emu.store.records import RECORD_KEY
from switch_emu.store.spill import SpillFile
from tests.suites.store_suite import small_config
from tests.syscalls import __main__ as campaign
from tests.syscalls import tracing
from tests.syscalls.story import Child
from tests.syscalls.tracing import Call

pytestmark = pytest.mark.skipif(
    not tracing.is_installed(), reason="strace is not installed, or may not trace here"
)


def spilled(directory: Path) -> None:
    """Gradient sums that find no room in RAM."""
    with SpillFile(directory, place_bytes=65536, places_count=1) as spill:
        for _ in range(50):
            spill.free(spill.put(memoryview(bytes(65536))))


def attached(directory: Path) -> None:
    """What workers keep with a step."""
    with AttachmentFiles(directory, synced=True, decided=None) as files:
        files.put(1, 1, 0, 0, memoryview(b"state"))
        step = DecidedStep(version=1, attempt=1, extra={RECORD_KEY: files.seal(1, 1)})
        files.replace(step, 1, 0, memoryview(b"other"))


def made(directory: Path) -> None:
    """An export, an import or a snapshot: a directory that appears as a whole."""
    with making_directory(directory / "made") as new:
        new.mkdir()


def claimed(directory: Path) -> None:
    """A state that takes the place of the claim on it."""
    with Claim(directory / "state") as claim:
        claim.take()
        FilePageStore.create(directory / "state", small_config(), claim=claim).close()


PATHS = [
    (claimed, "unlink", 1, r"a store of .* could not be made.*(Input/output|No space left)"),
    (spilled, "fallocate", 1, "spill file of gradient sums cannot grow"),
    (spilled, "pwritev,pwritev2", 3, "a gradient sum cannot be written to the spill file"),
    (attached, "pwrite64", 1, r"kept-1-1\.dat: what rank 0 attached .* cannot be written"),
    (attached, "fdatasync", 1, r"kept-1-1\.dat: what workers attached .* cannot be flushed"),
    (attached, "fsync", 1, r"kept-1-1\.dat: what workers attached .* cannot be flushed"),
    (attached, "fdatasync", 2, r"kept-1-1-0\.dat: what rank 0 attached .* cannot be replaced"),
    (attached, "rename", 1, r"kept-1-1-0\.dat: what rank 0 attached .* version is unchanged"),
    (made, "fsync", 1, "made.*othing was left behind"),
    (made, "fsync", 2, "made.*othing was left behind"),
    (made, "rename", 1, "made.*othing was left behind"),
]


@pytest.mark.faults(19)
@pytest.mark.faults(20)
@pytest.mark.faults(21)
@pytest.mark.parametrize(("error", "kind"), [("EIO", StateError), ("ENOSPC", StoreFullError)])
@pytest.mark.parametrize(("work", "name", "number", "said"), PATHS)
def test_each_file_of_a_job_fails_in_words(
    tmp_path: Path, work: Callable[[Path], None], name: str, number: int, said: str,
    error: tracing.Fault, kind: type[StateError],
) -> None:  # fmt: skip
    """I6, I8. Goal: a call that the system refuses on any path ends in one kind of error, with the
    place in it and exit code 5, and leaves nothing behind. (Pages, manifests, counters and
    configuration: the campaign.)"""
    gate, opener = os.pipe()
    directory = tmp_path / "files"
    directory.mkdir()

    def child() -> int:
        os.read(gate, 1)
        try:
            work(directory)
        except StateError as found:
            (tmp_path / "error").write_text(f"{type(found).__name__} {found}")
            return found.exit_code
        return 0

    process = Child(child, tmp_path / "log")
    call = Call(process.pid, name, number, "", True)
    tracer = tracing.inject(process.pid, tmp_path / "strace", call, error, ())
    os.write(opener, b"g")
    code = process.wait("the child")
    assert any("(INJECTED)" in line for line in tracer.lines())
    assert code == kind.exit_code == 5, (tmp_path / "log").read_text()
    text = (tmp_path / "error").read_text()
    assert text.startswith(f"{kind.__name__} "), text
    assert re.search(said, text), text
    left = [path.name for path in directory.iterdir() if not path.name.startswith("kept-")]
    assert left == []


@pytest.mark.timeout(600)
def test_a_share_of_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """O1, O2, I1, I2, I3. Goal: no decided step is lost and training ends with the same weights,
    whatever the node was doing. Method: every 101st of all trials, whose number is no multiple of
    the faults of a call, so that all kinds come up."""
    code = campaign.main(["--stride", "101"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert said.splitlines()[-1].endswith(" trials, 0 violations")
