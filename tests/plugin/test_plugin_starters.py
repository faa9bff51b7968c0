"""Workers of `luwu_run` are forked, where torch was imported if they use it; and are new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.launch.processes.children import is_alive
from luwu.testing.starters import STARTERS_MAX
from tests.plugin.sandbox import LIMIT_S, Sandbox, make_sandbox

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

SUITE = """
import os, resource, signal, sys, threading
from pathlib import Path

import pytest

from luwu.testing import WorkerFailed

def starter():
    # worker, guard, starter
    guard = int(Path(f"/proc/{os.getppid()}/stat").read_text().split()[3])
    assert b"luwu.testing.starter" in Path(f"/proc/{guard}/cmdline").read_bytes()
    return guard

def facts(rank):
    return {
        "starter": starter(),
        "shares_torch": "libtorch" in Path("/proc/self/maps").read_text(),
        "imported": [name for name in ("torch", "numpy", "luwu.training") if name in sys.modules],
        "said": os.environ.get("SAID"),
        "directory": os.getcwd(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "rank": os.environ["RANK"],
        "test": os.environ["PYTEST_CURRENT_TEST"],
        "stdin": os.read(0, 1).decode(),
        "session": os.getsid(0) == os.getppid(),
        "signals": handlers(),
    }

def handlers():
    return [signal.getsignal(each).value for each in (signal.SIGHUP, signal.SIGCHLD)]

def threads(rank, *counts):
    os.environ["OMP_NUM_THREADS"] = str(counts[rank])
    import torch

    return torch.get_num_threads()

def waits(rank, file):
    print("waits", flush=True)
    while not Path(file).exists():
        threading.Event().wait(0.02)
    return rank
"""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with make_sandbox(tmp_path) as made:
        yield made


@pytest.mark.feature("torch imported once a session")
def test_plugin_starters_workers_are_new_processes(sandbox: Sandbox) -> None:
    """Goal: the starter is the same while a test changes nothing for itself; what it changes is so
    in its workers: variables, directory, limits. Torch is there once a worker has used it; still a
    worker has imported nothing, and an import follows what its function has set. Of more
    circumstances than starters are kept for, calls that are under way end well."""
    sandbox.write(
        SUITE
        + f"""
def test_facts(luwu_run, monkeypatch, tmp_path):
    first = luwu_run(facts, workers=2)
    assert [each["rank"] for each in first] == ["0", "1"]
    for _ in range(2):
        assert luwu_run(threads, workers=2, args=(1, 2)) == [1, 2]
    second = luwu_run(facts, workers=2)
    assert len({{each["starter"] for each in (*first, *second)}}) == 1
    assert [each["shares_torch"] for each in (*first, *second)] == [False, False, True, True]
    assert first[0]["imported"] == second[0]["imported"] == []
    assert (first[0]["said"], first[0]["directory"]) == (None, os.getcwd())
    assert "test_facts" in first[0]["test"]
    assert (first[0]["stdin"], first[0]["session"]) == ("", True)
    assert first[0]["signals"] == handlers()

    monkeypatch.chdir(tmp_path)
    moved, _ = luwu_run(facts, workers=2)
    assert (moved["directory"], moved["starter"]) == (str(tmp_path), first[0]["starter"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        limited, _ = luwu_run(facts, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (limited["files"], limited["starter"] == moved["starter"]) == (soft - 1, False)

def test_many(luwu_run, monkeypatch, tmp_path):
    calls = []
    for number in range({STARTERS_MAX} + 1):
        monkeypatch.setenv("SAID", str(number))
        calls.append(luwu_run.start(waits, workers=1, args=(str(tmp_path / "end"),)))
    for call in calls:
        call.wait_for_text(0, "waits")
    (tmp_path / "end").touch()
    assert [call.wait() for call in calls] == [[0]] * len(calls)
"""
    )
    sandbox.run()


def test_plugin_starters_are_no_hiding_place(sandbox: Sandbox) -> None:
    """I8. Goal: what a worker forks and leaves is found by its mark, though no program was started;
    a starter that is killed ends its workers, the test that waits says so, and the next has
    another."""
    sandbox.write(
        SUITE
        + """
def leaves(rank):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        threading.Event().wait()
    return pid

def test_leaves(luwu_run, tmp_path_factory):
    (pid,) = luwu_run(leaves, workers=1)
    (tmp_path_factory.getbasetemp() / "left").write_text(str(pid))

def test_killed(luwu_run, tmp_path):
    (found,) = luwu_run(facts, workers=1)
    call = luwu_run.start(waits, workers=1, args=(str(tmp_path / "end"),))
    call.wait_for_text(0, "waits")
    os.kill(found["starter"], signal.SIGKILL)
    with pytest.raises(WorkerFailed, match="SIGKILL, and they with it; log .*starter-1.log"):
        call.wait()
    (another,) = luwu_run(facts, workers=1)
    assert another["starter"] != found["starter"]
"""
    )
    output = sandbox.run(code=1)
    left = (sandbox.basetemp / "left").read_text()
    assert "2 passed, 1 error" in output
    assert f"process {left} (" in output
    assert not is_alive(int(left))
