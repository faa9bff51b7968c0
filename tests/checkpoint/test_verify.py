"""`luwu verify`: what it finds, and that it changes nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luwu.commands.main import main
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.geometry import Geometry
from switch_emu.store.manifest import copy_offset
from switch_emu.store.records import RECORD_KEY
from tests.helpers.exports import flip
from tests.suites.store_suite import small_config, take_step, write_pages

GEOMETRY = Geometry(small_config())


def attach(store: FilePageStore, version: int, attempt: int = 0) -> dict[str, str]:
    """Put something beside a version; what its record must say."""
    with AttachmentFiles(store.path, synced=False, decided=store.decided) as files:
        files.put(version, attempt, 0, 0, memoryview(b"a scheduler at %d" % version))
        return {RECORD_KEY: files.seal(version, attempt)}


def step(store: FilePageStore, version: int, attempt: int = 0) -> None:
    """A step that also keeps something beside its version."""
    write_pages(store, range(7), version, attempt)
    extra = attach(store, version, attempt)
    store.prepare(DecidedStep(version=version, attempt=attempt, extra=extra))
    store.decide(version, attempt)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """After three steps, closed; versions 2 and 3 lie on the two sides."""
    with FilePageStore.create(tmp_path / "state", small_config()) as store:
        take_step(store, 0)
        for version in (1, 2, 3):
            step(store, version)
    return tmp_path / "state"


def image(state: Path) -> dict[str, str]:
    """Hash of every file."""
    files = [path for path in state.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def verify(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    """Exit code, and everything it said."""
    code = main(["verify", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


@pytest.mark.feature("luwu verify")
def test_a_whole_state(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: version, durability and nodes are told; in full every page is read; no byte changes."""
    before = image(state)
    code, said = verify(capsys, state)
    assert (code, "manifests are whole; NOT READ: 7 pages (" in said) == (0, True), said
    assert f"luwu verify {state} --full reads them" in said
    assert "version 3, 7 pages" in said
    assert "last with durability step" in said
    code, said = verify(capsys, state, "--full", "--json")
    document = json.loads(said)
    assert code == 0
    assert (document["whole"], document["version"], document["damages"]) == (True, 3, [])
    (node,) = document["nodes"]
    assert node["read_count"] == 7
    assert image(state) == before


Damage = Callable[[Path], None]
PAGE = GEOMETRY.offsets[5] + 20_000
COPIES = [copy_offset(GEOMETRY.table, place, copy) for place in range(2) for copy in range(2)]


def damage_all(state: Path, name: str, offsets: list[int]) -> None:
    for offset in offsets:
        flip(state / name, offset)


@pytest.mark.parametrize(
    ("damage", "quick", "said"),
    [
        pytest.param(lambda s: flip(s / "side1.dat", PAGE), 0, "page 5 of side1.dat, field m",
                     id="page"),
        pytest.param(lambda s: flip(s / "kept-3-0.dat", 3), 0, "kept-3-0.dat: piece 0 at byte 0",
                     id="kept-piece"),
        pytest.param(lambda s: (s / "kept-3-0.dat").unlink(), 0, "kept-3-0.dat cannot be opened",
                     id="kept-file"),
        pytest.param(lambda s: damage_all(s, "meta.dat", [at + 200 for at in COPIES]), 5,
                     "manifest of version 3 in meta.dat.*both copies", id="both-manifests"),
        pytest.param(lambda s: damage_all(s, "meta.dat", [n * BLOCK_BYTES + 60 for n in range(4)]),
                     5, "meta.dat: none of the 4 copies", id="superblock"),
        pytest.param(lambda s: damage_all(s, "LOCK", [n * BLOCK_BYTES + 60 for n in range(4)]),
                     5, "LOCK: none of the 4 copies", id="counters"),
        pytest.param(lambda s: flip(s / "CONFIG", 300), 5, "CONFIG: checksum", id="config"),
        pytest.param(lambda s: flip(s / "CONFIG", 2), 5, "CONFIG does not start", id="config-line"),
        pytest.param(lambda s: (s / "side0.dat").write_bytes(b""), 5, "side0.dat has 0 bytes",
                     id="cut-file"),
        pytest.param(lambda s: (s / "meta.dat").unlink(), 5, "meta.dat is missing", id="no-record"),
    ],
)  # fmt: skip
def test_damage_is_told_with_its_place(
    state: Path, damage: Damage, quick: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: each kind of byte, flipped at rest: exit code 5, the file and the place; and what only
    a full look can see is not claimed by a quick one. No look changes anything."""
    damage(state)
    before = image(state)
    assert verify(capsys, state)[0] == quick
    code, text = verify(capsys, state, "--full")
    assert code == 5
    assert re.search(said, text), text
    assert "docs/storage.md" in text
    assert image(state) == before


@pytest.mark.faults(25)
@pytest.mark.parametrize(
    ("name", "offset", "said"),
    [
        ("meta.dat", COPIES[2] + 200, "meta.dat: copy 0 of a manifest is damaged"),
        ("meta.dat", COPIES[3] + 200, "meta.dat: copy 1 of a manifest is damaged"),
        ("meta.dat", 60, "meta.dat: 1 of 4 record blocks"),
        ("LOCK", BLOCK_BYTES + 60, "LOCK: 1 of 4 record blocks"),
    ],
)
def test_one_damaged_copy_is_survived_and_written_anew(
    state: Path, name: str, offset: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the state is whole, the damage is told, and the next opening leaves no trace of it."""
    flip(state / name, offset)
    code, text = verify(capsys, state, "--full")
    assert code == 0
    assert "survived: " + said in text, text
    with FilePageStore.open(state) as store:
        assert any(name in note for note in store.notes)
        step(store, 4)
    code, text = verify(capsys, state, "--full")
    assert (code, "survived" in text, "version 4" in text) == (0, False, True), text


def test_a_state_in_use_is_left_alone(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FilePageStore.open(state):
        code, said = verify(capsys, state)
        assert (code, "is open in process" in said) == (2, True), said
    assert verify(capsys, state.parent)[0] == 2


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """Node 0 has decided version 2; node 1 has it prepared, as a kill may leave it."""
    for number in range(2):
        with FilePageStore.create(tmp_path / f"two/node-{number}", small_config()) as store:
            take_step(store, 0)
            take_step(store, 1)
            write_pages(store, range(7), 2)
            store.prepare(DecidedStep(version=2, attempt=0))
            if number == 0:
                store.decide(2, 0)
    return tmp_path / "two"


def test_two_nodes(two_nodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the report has every node, and what only one of them has prepared."""
    code, said = verify(capsys, two_nodes, "--full")
    assert code == 0, said
    assert "node-0: version 2" in said
    assert "node-1: version 1" in said
    assert "version 2 is prepared" in said


def test_nodes_that_are_not_one_state(two_nodes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FilePageStore.open(two_nodes / "node-1") as store:
        store.abort(0)
    code, said = verify(capsys, two_nodes)
    assert (code, "not parts of one state" in said) == (5, True), said
