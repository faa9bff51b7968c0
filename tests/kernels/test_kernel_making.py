"""How an update kernel is made: compiled, kept, found again, and what may be loaded."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import update as benchmark
from luwu.base.directories import locked
from switch_emu.native import build as building
from switch_emu.node.kernels import make as making
from switch_emu.node.kernels.make import make_kernel
from switch_emu.node.kernels.selfcheck import difference
from tests.helpers import kernel_jobs
from tests.helpers.kernel_jobs import ADAMW, MOMENTUM, need_compiled
from tests.helpers.local_job import Job, Worker, cluster_for, used_state
from tests.helpers.waiting import is_soon

ROOT = Path(__file__).resolve().parents[2]
cache = kernel_jobs.cache  # a fixture of this module


@pytest.fixture
def fresh(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a user without one of his own; where kernels can be compiled."""
    need_compiled(cache)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    return tmp_path / "kernels"


@pytest.fixture
def unchecked(fresh: Path, cache: Path) -> Path:
    """A cache with the library that was compiled for this module, and no notes."""
    (path,) = libraries(cache)
    fresh.mkdir(mode=0o700)
    shutil.copyfile(path, fresh / path.name)
    (fresh / path.name).chmod(0o700)
    return fresh


@pytest.fixture
def quick_compiler(fresh: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The C compiler; another stands in its place that has compiled the kernel already, which takes
    the real one 6 s."""
    compiler = shutil.which("cc")
    assert compiler is not None
    (library,) = libraries(cache)
    stand_in(
        fresh, monkeypatch,
        f'[ "$1" = --version ] && exec {compiler} --version\n'
        f'while [ "$1" != -o ]; do shift; done\nexec cp {library} "$2"',
    )  # fmt: skip
    return compiler


@pytest.fixture
def plain_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The C compiler, which optimises little: in a third of the time."""
    stand_in(fresh, monkeypatch, f'exec {shutil.which("cc")} "$@" -O1')


def stand_in(fresh: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A shell script for the C compiler."""
    path = fresh.parent / "bin" / "cc"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)


def libraries(cache: Path) -> list[Path]:
    """All but the notes of what was checked."""
    return sorted(path for path in cache.iterdir() if path.suffix != ".agrees")


def notes(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.agrees"))


def test_a_library_is_compiled_once(fresh: Path) -> None:
    """Goal: the second start finds the first one's file, which is private."""
    first = make_kernel(*ADAMW, cache=fresh)
    assert first.reason.startswith("compiled by ")
    (path,) = libraries(fresh)
    assert path.stat().st_mode & 0o077 == 0
    assert fresh.stat().st_mode & 0o077 == 0
    changed_ns = path.stat().st_mtime_ns
    second = make_kernel(*MOMENTUM, cache=fresh)
    assert second.reason.startswith("found in the cache")
    assert libraries(fresh) == [path]
    assert path.stat().st_mtime_ns == changed_ns


def test_processes_that_start_together_compile_once(
    fresh: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: several nodes, on a machine that has never run one, do not compile the same library
    beside each other, and remove what one that was killed meanwhile left, all of it in the cache.
    Method: threads; the compiler waits until all of them ask for the lock."""
    (fresh / ".arithmetic-left").mkdir(parents=True)
    compiler, (library,) = shutil.which("cc"), libraries(cache)
    calls, may_end = tmp_path / "calls", tmp_path / "may-end"
    stand_in(
        fresh, monkeypatch,
        f'[ "$1" = --version ] && exec {compiler} --version\ndirname $TMPDIR >> {calls}\n'
        f"while [ ! -e {may_end} ]; do sleep 0.01; done\n"
        f'while [ "$1" != -o ]; do shift; done\nexec cp {library} "$2"',
    )  # fmt: skip
    asking: list[Path] = []

    def asked(directory: Path) -> AbstractContextManager[None]:
        asking.append(directory)
        return locked(directory)

    monkeypatch.setattr(building, "locked", asked)
    found: list[building.Built] = []
    threads = [
        threading.Thread(target=lambda: found.append(building.build(fresh))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    try:
        assert is_soon(lambda: len(asking) == 3)
    finally:
        may_end.touch()
        for thread in threads:
            thread.join(60)
    assert sorted(each.is_new for each in found) == [False, False, True]
    assert calls.read_text() == f"{fresh}\n"
    assert [*fresh.glob(".*")] == []


def test_nothing_is_loaded_that_came_with_a_state(
    quick_compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7. Goal: a library in a state that was copied from elsewhere never runs, nor is one left in
    a state; which version made a step is kept with it.
    Method: a trap under the name that a node once looked for, in the state of a job."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    state = used_state(tmp_path)
    [library] = libraries(tmp_path / "user" / "luwu" / "kernels")
    assert not (state / "kernels").exists()
    (state / "kernels").mkdir(mode=0o700)
    sprung = tmp_path / "sprung"
    trap = state / "kernels" / library.name
    source = (
        "#include <fcntl.h>\n"
        f"__attribute__((constructor)) static void spring(void) {{ creat({str(sprung)!r}, 0600); }}"
    ).replace("'", '"')
    command = [quick_compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(trap)]
    subprocess.run(command, input=source, text=True, check=True)
    trap.chmod(0o700)
    with cluster_for(Job(steps=3), tmp_path, state=state, resume=True) as cluster:
        cluster.run(Worker(Job(steps=3)))
        store = cluster.node.store
        assert store is not None
        assert store.decided is not None
        assert store.decided.extra["kernel"] == "torch-fused-adamw compiled"
    assert not sprung.exists()
    ctypes.CDLL(str(trap))
    assert sprung.exists()  # it would have been seen


@pytest.mark.usefixtures("quick_compiler")
def test_what_is_damaged_open_or_a_link_is_compiled_again(unchecked: Path, tmp_path: Path) -> None:
    """Goal: a cut file, one that others can write, and a symbolic link are replaced, not loaded."""
    (path,) = libraries(unchecked)
    for spoil in (
        lambda: os.truncate(path, 100),
        lambda: path.chmod(0o722),
        lambda: path.symlink_to(path.rename(tmp_path / "elsewhere.so")),
    ):
        spoil()
        assert make_kernel(*ADAMW, cache=unchecked).reason.startswith("compiled by ")
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o077 == 0


def test_a_directory_others_can_write_is_refused(fresh: Path) -> None:
    """Goal: nothing is loaded from there, and the user reads why."""
    fresh.mkdir()
    fresh.chmod(0o777)
    made = make_kernel(*ADAMW, cache=fresh)
    assert made.kernel.version == "portable"
    assert "no other user can write" in made.reason
    assert libraries(fresh) == []


@pytest.mark.usefixtures("quick_compiler")
def test_the_directory_above_is_closed_to_others(fresh: Path, tmp_path: Path) -> None:
    """Goal: nobody can put another directory in the place of the cache."""
    above = tmp_path / "luwu"
    above.mkdir()
    above.chmod(0o775)
    make_kernel(*ADAMW, cache=above / "kernels")
    assert above.stat().st_mode & 0o077 == 0


def test_without_a_compiler_the_portable_kernel_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no compiler is no error."""
    monkeypatch.setenv("PATH", "")
    made = make_kernel(*ADAMW, cache=tmp_path)
    assert made.kernel.version == "portable"
    assert "no C compiler" in made.reason


def test_a_failing_compiler_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: its first error is the reason, and no partial file is left. Method: a fake `cc`."""
    script = '[ "$1" = --version ] && echo fake 1.0 && exit 0\necho "error: no" >&2\nexit 1'
    stand_in(tmp_path / "kernels", monkeypatch, script)
    made = make_kernel(*ADAMW, cache=tmp_path / "kernels")
    assert made.kernel.version == "portable"
    assert "failed with 1: error: no" in made.reason
    assert libraries(tmp_path / "kernels") == []


@pytest.mark.usefixtures("plain_compiler")
def test_a_kernel_that_breaks_its_promise_is_not_used(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: one wrong rounding is found at the start. Method: a source with a fused multiply-add
    taken out; and one whose squares are added in another order. The right source has torch's bits
    as it is compiled here."""
    assert make_kernel(*ADAMW, cache=fresh).kernel.version == "compiled"
    source = building.SOURCE.read_text()
    for right, wrong in [
        ("FMA(rest2 * g, g, second * beta2)", "(rest2 * g) * g + second * beta2"),
        ("lane[j] += (double)sum[j]", "lane[j ^ 1] += (double)sum[j]"),
    ]:
        assert right in source
        broken = tmp_path / "broken.c"
        broken.write_text(source.replace(right, wrong))
        monkeypatch.setattr(building, "SOURCE", broken)
        made = make_kernel(*ADAMW, cache=fresh)
        assert made.kernel.version == "portable"
        assert "does not give torch's bits" in made.reason


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were compared."""
    found: list[str] = []

    def compare(*said: Any) -> str | None:
        found.append(said[0].name)
        return difference(*said)

    monkeypatch.setattr(making, "difference", compare)
    return found


@pytest.mark.parametrize("change", ["nothing", "torch", "instructions", "open to others"])
def test_what_was_checked_is_checked_again_only_if_it_must_be(
    change: str, unchecked: Path, comparisons: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: the second start takes the kernel as the first one found it, and another optimizer
    is checked for itself. With another torch or other instructions the kernel is compared again; a
    note that others can write is no note. Another library has another name, and other notes."""
    for optimizer in (ADAMW, MOMENTUM):
        assert make_kernel(*optimizer, cache=unchecked).kernel.version == "compiled"
    assert all(path.stat().st_mode & 0o077 == 0 for path in notes(unchecked))
    if change == "torch":
        monkeypatch.setattr(making, "_compared_with", lambda: "another one")
    elif change == "instructions":
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    for path in notes(unchecked) if change == "open to others" else ():
        path.chmod(0o622)
    make_kernel(*ADAMW, cache=unchecked)
    again = [] if change == "nothing" else ["torch-fused-adamw"]
    assert comparisons == ["torch-fused-adamw", "torch-fused-sgd", *again]


def test_a_failed_check_leaves_no_note(unchecked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a kernel that is not used is checked again, and not used again."""
    monkeypatch.setattr(making, "difference", lambda *_: "weights differ in 3 bytes")
    for _ in range(2):
        assert make_kernel(*ADAMW, cache=unchecked).kernel.version == "portable"
    assert notes(unchecked) == []


def test_a_node_that_comes_back_needs_no_torch(unchecked: Path) -> None:
    """Goal: what a node imports, and its kernel once it was checked, leave torch alone; so does
    the launcher's plan. It takes longer to import than all the rest."""
    make_kernel(*ADAMW, cache=unchecked)
    script = f"""if True:
        import sys
        from pathlib import Path
        import luwu.commands.run, luwu.estimate.plan, switch_emu.node.process
        from switch_emu.node.kernels.make import make_kernel
        made = make_kernel("adamw", ("m", "v"), cache=Path({str(unchecked)!r}))
        assert made.kernel.version == "compiled", made.reason
        made.kernel.enter_thread()
        assert "torch" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("quick_compiler")
def test_benchmark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `benchmarks/update.py` does not rot. Method: its smoke sizes; it checks its answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = benchmark.main(["--smoke", "--json", str(tmp_path / "update.json")])
    assert (tmp_path / "update.json").exists()
    assert result["claims"]["portable_float32_min"] > 0
