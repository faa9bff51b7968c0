"""A small share of each part of `tests.fuzz`, and what it must be able to find."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import DeadlineError, StateError
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from luwu.wire.codec import decode
from luwu.wire.messages import MESSAGE_TYPES
from switch_emu.process.loop import Loop
from tests.fuzz import files, headers, live, tensors
from tests.fuzz.__main__ import Slice, main, slices_of, work_off
from tests.fuzz.mutate import Cases
from tests.unit.exports import bring
from tests.unit.local_job import Job, cluster_for

PATIENT_S = 60.0
"""A busy machine is no hang."""
PATIENT_NS = int(PATIENT_S * 1e9)


def test_cases_depend_on_seed_and_index_alone() -> None:
    """Goal: a violation is found again by `--first`, without the cases before it."""
    once, again = Cases(3), Cases(3)
    assert [once.case(index) for index in range(50)] == [
        again.case(index) for index in reversed(range(50))
    ][::-1]
    assert [Cases(4).case(index) for index in range(50)] != [once.case(i) for i in range(50)]


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
def test_tensors(tmp_path: Path) -> None:
    """Goal: nothing is wrong with 80 files that lie."""
    assert list(tensors.fuzz_tensors(1, 0, 80, tmp_path, hang_ns=PATIENT_NS)) == []


@pytest.mark.feature("hostile headers, messages and files")
def test_files(tmp_path: Path) -> None:
    """Goal: whatever stands in the place of a file, each reader of one ends with a sentence, and
    waits for nothing. Method: 1,000 cases over all readers, from a seed."""
    assert list(files.fuzz_files(1, 0, 1000, tmp_path, hang_ns=PATIENT_NS)) == []


@pytest.mark.faults(29)
@pytest.mark.feature("hostile headers, messages and files")
def test_live(tmp_path: Path) -> None:
    """I1, I3. Goal: 1,000 messages of a stranger change no bit of a job that trains meanwhile."""
    assert list(live.fuzz_live(1, 0, 1000, tmp_path, hang_s=PATIENT_S)) == []


# ---------------------------------------------------------------------- what must be found


def test_a_decoder_that_raises_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(header: bytes, payload_count: int) -> Any:
        if header[1:2] == b"\x03":
            raise KeyError("field")
        return decode(header, payload_count)

    monkeypatch.setattr(headers, "decode", careless)
    found = list(headers.fuzz_headers(1, 0, 2000, hang_ns=PATIENT_NS))
    assert "KeyError" in found[0]
    index = int(found[0].split()[1].rstrip(":"))
    assert list(headers.fuzz_headers(1, index, 1, hang_ns=PATIENT_NS)) == found[:1]


def test_a_decoder_that_takes_its_time_is_found() -> None:
    found = list(headers.fuzz_headers(1, 0, 10, hang_ns=0))
    assert len(found) == 10
    assert "took" in found[0]


def test_a_partial_import_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a state that appears although the import was refused, and an error that is none."""

    def partly(source: Path, state: Path) -> Any:
        state.mkdir()
        raise StateError("refused, but too late")

    monkeypatch.setattr(tensors, "bring", partly)
    (found,) = tensors.fuzz_tensors(1, 0, 1, tmp_path / "a", hang_ns=PATIENT_NS)
    assert "left new" in found

    def crash(source: Path, state: Path) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr(tensors, "bring", crash)
    (found,) = tensors.fuzz_tensors(1, 0, 1, tmp_path / "b", hang_ns=PATIENT_NS)
    assert "IndexError" in found


def test_other_weights_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is taken must be what was exported; here the file as it was is taken."""
    exported = tensors.Exported(tmp_path)
    assert tensors._wrong(exported) == (None, False)
    exported.digest = "0" * 64
    said, _ = tensors._wrong(exported)
    assert said is not None
    assert said.startswith("was imported with digest")
    assert bring(exported.path, exported.target).step == 2


def test_a_switch_that_garbage_ends_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(self: Loop, delivery: Any) -> None:
        decode(delivery.header, len(delivery.buffers))
        original(self, delivery)

    original = Loop._delivered
    monkeypatch.setattr(Loop, "_delivered", careless)
    (found,) = live.fuzz_live(1, 0, 100, tmp_path, hang_s=PATIENT_S)
    assert "RemoteProtocolError" in found


def test_a_stranger_closes_its_connections_when_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6. Goal: a job that ends while the stranger connects leaves no connection open: the garbage
    collector, which meets it in any later test, waits for ever for the end of its context."""
    opened: list[Any] = []

    def recorded(endpoint: str) -> Transport:
        opened.append(open_transport(endpoint))
        return opened[-1]

    monkeypatch.setattr(live, "open_transport", recorded)
    is_over = False
    with cluster_for(Job(), tmp_path, transport="ipc") as cluster:
        with live.Stranger(cluster, 1, lambda: is_over) as stranger:
            is_over = True
            with pytest.raises(DeadlineError, match="said no PeerUp"):
                stranger.say(0)
        with pytest.raises(DeadlineError):
            live.Stranger(cluster, 1, lambda: is_over)
    left = [transport for transport in opened if not transport.context.closed]
    for transport in left:
        transport.close()
    assert (len(opened), left) == (4, [])


# ---------------------------------------------------------------------- the command


def test_the_command_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["--headers", "3000", "--seed", "5", "--directory", str(tmp_path)])
    assert (code, capsys.readouterr().out.splitlines()[-1]) == (0, "3000 trials, 0 violations")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_is_a_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: a crash of the interpreter itself is seen, with where to look."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho last words\nkill -SEGV $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    asked = argparse.Namespace(seed=0, end_ns=None, directory=None)
    tallies = work_off([Slice("headers", 4000, 1000)], asked)
    assert (tallies["headers"].trials, tallies["headers"].violations) == (0, 1)
    said = capsys.readouterr().out
    assert "headers 4000 to 5000 ended with signal SIGSEGV\nlast words" in said


def test_parts_take_turns() -> None:
    """Goal: every case once, and a limit of time meets all parts alike."""

    def parts(**counts: int | None) -> Iterator[tuple[str, int, int]]:
        names = {"headers": None, "live": None, "tensors": None, "files": None}
        for work in slices_of(argparse.Namespace(first=10, **{**names, **counts})):
            yield work.part, work.first, work.count

    assert list(parts(live=12_000, tensors=5)) == [
        ("live", 10, 10_000), ("tensors", 10, 5), ("live", 10_010, 2_000),
    ]  # fmt: skip
    everything = list(parts())
    assert sum(count for part, _, count in everything if part == "headers") == 10_000_000
    assert {part for part, _, _ in everything[:4]} == {"headers", "live", "tensors", "files"}
