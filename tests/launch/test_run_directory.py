"""A run's folder: found by name or as the latest, and never half written."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json, write_json
from luwu.base.socket_directory import PREFIX, YOUNG_NS, remove_directory, sweep
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory


@pytest.mark.feature("luwu-runs/latest")
def test_a_new_run_is_the_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the latest is the last that began: one that was refused does not hide the one before,
    nor does one with a name of its own."""
    monkeypatch.chdir(tmp_path)
    first, second = RunDirectory.create(), RunDirectory.create()
    assert first.path != second.path
    with pytest.raises(ConfigError, match="no run in"):
        RunDirectory.find()
    first.begin()
    assert RunDirectory.find().path == first.path
    second.begin()
    RunDirectory.create()
    RunDirectory.create(tmp_path / "named").begin()
    assert RunDirectory.find().path == second.path
    assert RunDirectory.find(first.path).path == first.path
    assert os.readlink("luwu-runs/latest") == second.path.name


def test_a_directory_that_holds_a_run_is_not_used_again(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r")
    write_json(run.file("resolved.json"), {"started": "then"})
    with pytest.raises(ConfigError, match="holds the run of then"):
        RunDirectory.create(tmp_path / "r")
    assert RunDirectory.create(tmp_path / "r", is_shared=True).path == run.path


def test_without_a_run_there_is_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="luwu compare"):
        RunDirectory.find()
    with pytest.raises(ConfigError, match="no run in nowhere"):
        RunDirectory.find(Path("nowhere"))


def test_processes_are_written_in_the_agreed_shape(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "r")
    entry = ProcessEntry(role="worker", rank=1, pid=77, started="2026-03-14T12:00:03Z")
    run.write_processes([entry])
    assert json.loads(run.file("processes.json").read_text()) == {
        "schema": 1,
        "processes": [{"role": "worker", "rank": 1, "pid": 77, "started": "2026-03-14T12:00:03Z"}],
    }
    assert run.read_processes() == [entry]
    assert [path.name for path in run.path.iterdir() if path.is_file()] == ["processes.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2]")
    (tmp_path / "b.json").write_text("{")
    for name in ("a.json", "b.json"):
        with pytest.raises(ConfigError, match="not written by luwu"):
            read_json(tmp_path / name)
    assert read_json(tmp_path / "c.json") is None


def test_sockets_of_dead_launchers_are_swept(tmp_path: Path) -> None:
    """I8. Goal: what a killed launcher left is removed, what a living one uses is not.
    Method: directories named after a process that cannot exist, and after our own."""
    dead = tmp_path / f"{PREFIX}99999999-old"
    young = tmp_path / f"{PREFIX}99999999-new"
    restarting = tmp_path / f"{PREFIX}99999999-again"
    alive = tmp_path / f"{PREFIX}{os.getpid()}-x"
    for folder in (dead, young, restarting, alive):
        folder.mkdir()
    (restarting / "switch").touch()  # nobody answers there
    old_ns = dead.stat().st_mtime_ns - 2 * YOUNG_NS
    for folder in (dead, alive):
        os.utime(folder, ns=(old_ns, old_ns))
    sweep(tmp_path)
    assert not dead.exists()
    assert young.exists()
    assert restarting.exists()
    assert alive.exists()
    sweep(tmp_path, young_ns=0)
    assert young.exists()
    assert not restarting.exists()
    assert alive.exists()
    alive = alive.rename(tmp_path / f"{PREFIX}0-x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(alive / "w"))
        listener.listen()
        for folder in (young, alive):
            remove_directory(folder)
    assert [young.exists(), alive.exists()] == [False, True]
