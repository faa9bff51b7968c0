"""The pytest plugin in a pytest of its own: what it starts, shows, refuses and leaves.

`pytest -k plugin_suite` runs these. The suite of a user is `example.py`; the others are written
here, where they stand for one mistake or one option each.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from luwu.testing.leftovers import until_empty
from tests.helpers.docstrings import blocks, public_of_testing
from tests.plugin.sandbox import LIMIT_S, ROOT, Sandbox, section

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

HERE = Path(__file__).parent
FUNCTIONS = """
import os, threading
import pytest
import luwu

def rank_of(rank):
    return rank

def waits(rank):
    print("waits", flush=True)
    threading.Event().wait()
"""


@pytest.mark.feature("a suite under xdist")
def test_plugin_suite_of_a_user(sandbox: Sandbox) -> None:
    """Goal: under `-n 2` nothing is left, a killed worker fails its test with the signal, not at
    its time limit, and a leak fails its test at the end."""
    shutil.copy(HERE / "example.py", sandbox.path / "test_example.py")

    output = sandbox.run("-n", "2", "-rA", code=1)

    assert "1 failed, 3 passed, 1 error in" in output
    assert re.search(r"FAILED test_example.py::test_killed_worker", output)
    assert re.search(r"ERROR test_example.py::test_leaves_a_process", output)
    killed = section(output, "test_killed_worker")
    assert re.search(r"WorkerFailed: worker 1 \(pid \d+\) was lost: signal SIGKILL", killed)
    assert re.search(r"luwu worker-1: last 50 lines of \S+worker-1.log -*\nrank 1 begins", killed)
    assert re.search(r"luwu run directory -*\n/\S+", killed)
    assert "INFO" not in killed

    leak = section(output, "teardown of test_leaves_a_process")
    assert re.search(r"left something behind:\n  process \d+ \(sleep 300\)", leak)


@pytest.mark.feature("no cost until it is used")
def test_plugin_suite_loads_pytest_and_the_standard_library_only(sandbox: Sandbox) -> None:
    """Goal: a project that only has luwu installed pays nothing. Method: an empty suite, and no
    plugins but ours; then look at what was imported."""
    sandbox.write(
        """
import sys
def pytest_unconfigure(config):
    assert config.pluginmanager.has_plugin("luwu.testing.plugin")
    print("LOADED", *sorted(sys.modules))
""",
        "conftest.py",
    )
    sandbox.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

    output = sandbox.run("-s", "--collect-only", "-p", "luwu.testing.plugin", code=5)

    loaded = next(line for line in output.splitlines() if line.startswith("LOADED")).split()[1:]
    ours = {name for name in loaded if name.partition(".")[0] in ("luwu", "switch_emu", "workers")}
    light = ("plugin", "record", "settings")
    assert ours == {"luwu", "luwu.testing", *(f"luwu.testing.{name}" for name in light)}
    of_pytest = {"pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "conftest",
                 "py", "sitecustomize"}  # fmt: skip
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - of_pytest
    assert not {name for name in others if not name.startswith("_")} - {"luwu"}
    assert not {"torch", "zmq", "numpy"} & set(loaded)


@pytest.mark.feature("options: command line and ini file")
def test_plugin_suite_options_have_an_order(sandbox: Sandbox) -> None:
    """Goal: argument, then command line, then ini file; and bad values are refused first."""
    sandbox.write(
        "[pytest]\nluwu_workers = 3\nluwu_timeout = 7.5\nluwu_keep = true\n", "pytest.ini"
    )
    sandbox.write("""
from luwu.testing.settings import setting

def test_settings(pytestconfig):
    names = ("workers", "timeout", "keep")
    print("FOUND", *(setting(pytestconfig, name) for name in names),
          setting(pytestconfig, "workers", 5))
""")

    assert "FOUND 3 7.5 True 5" in sandbox.run("-s")
    assert "FOUND 4 1.0 True 5" in sandbox.run("-s", "--luwu-workers", "4", "--luwu-timeout=1")
    refused = sandbox.run("--luwu-workers", "0", code=4)
    assert "--luwu-workers: '0' is not a whole number of at least 1" in refused
    sandbox.write("[pytest]\nluwu_timeout = soon\n", "pytest.ini")
    refused = sandbox.run(code=4)
    assert "pytest.ini: 'soon' is not a number of seconds above 0" in refused


def test_plugin_suite_mistakes(sandbox: Sandbox) -> None:
    """Goal: each way to wait for ever, or to leave something behind, ends with a sentence."""
    sandbox.write("[pytest]\nluwu_workers = 3\n", "pytest.ini")
    sandbox.write(
        FUNCTIONS
        + """
def test_flags(luwu_run, luwu_cluster):
    assert luwu_run(rank_of, flags=["--no-switch"]) == [0, 1, 2]
    with pytest.raises(luwu.ConfigError, match="chunk: 10KiB is not a multiple of 16KiB"):
        luwu_run(rank_of, flags=["--chunk", "10KiB"])

def test_late(luwu_cluster):
    cluster = luwu_cluster(waits, workers=1)
    cluster.wait_for_text("waits", log="worker-0")
    cluster.returned(1)

def test_thread(luwu_inproc):
    luwu_inproc(lambda rank: waits(rank) if rank else 1 / 0, workers=2)

def test_node_killed(luwu_cluster):
    cluster = luwu_cluster(waits, workers=1, flags=["--restarts", "0"])
    cluster.wait_for_text("waits", log="worker-0")
    cluster.kill("node")
    cluster.returned()
"""
    )
    output = sandbox.run("-rA", code=1)

    assert "3 failed, 1 passed, 1 error in" in output
    late = section(output, "test_late")
    assert "DeadlineError: waited 1 s for the function to return" in late
    assert re.search(r"most recent call first\):\n(E .*\n)+E .* in waits\n", late)
    assert "ZeroDivisionError" in section(output, "test_thread")
    assert "thread worker-1" in section(output, "teardown of test_thread")
    assert "the node ended with signal SIGKILL" in section(output, "test_node_killed")


@pytest.mark.feature("pytest itself killed")
def test_plugin_suite_killed_pytest_leaves_no_process(sandbox: Sandbox) -> None:
    """Goal: SIGKILL of pytest ends all processes of clusters, and their sockets go."""
    sandbox.write(
        FUNCTIONS
        + """
import subprocess

def waits_with_a_child(rank):
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    waits(rank)

def test_it(luwu_cluster):
    clusters = [luwu_cluster(waits_with_a_child, workers=2, flags=[flag])
                for flag in ("--no-switch", "--no-resume")]
    for cluster in clusters:
        cluster.wait_for_text("waits", log="worker-1")
    print("ALL RUN", flush=True)
    clusters[0].wait()
"""
    )
    process = sandbox.start("-s")
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "ALL RUN" in line:
                break
        assert "ALL RUN" in "".join(lines[-1:]), "".join(lines)
        assert len(sandbox.processes()) > 8
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

    assert until_empty(sandbox.processes, 8) == []
    assert [path for path in sandbox.temporary.rglob("*") if path.is_socket()] == []


@pytest.mark.feature("all import modes of pytest")
@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
def test_plugin_suite_functions_are_found(sandbox: Sandbox, mode: str) -> None:
    """Goal: a worker finds a function of a module in a package, with a relative import, and of one
    outside of any, however pytest imported them. Method: `read_call` in a process of its own."""
    test = """
import subprocess, sys
from luwu.testing.calls import write_call
IMPORT

class Namespace:
    @staticmethod
    def twice(rank):
        return 2 * FACTOR

def test_it(tmp_path):
    call = write_call(tmp_path / "call", Namespace.twice, (1,))
    program = ("import sys; from pathlib import Path; from luwu.testing.calls import read_call; "
               "function, args = read_call(Path(sys.argv[1])); print(function(0), args)")
    command = [sys.executable, "-c", program, str(call)]
    assert subprocess.run(command, check=True, capture_output=True, cwd="/").stdout == b"42 (1,)\\n"
"""
    sandbox.write("", "inner/__init__.py")
    sandbox.write("", "inner/deep/__init__.py")
    sandbox.write("FACTOR = 21\n", "inner/deep/helper.py")
    inner = test.replace("IMPORT", "from .helper import FACTOR")
    sandbox.write(inner, "inner/deep/test_in_package.py")
    sandbox.write(test.replace("IMPORT", "FACTOR = 21"), "outer/test_alone.py")

    assert "2 passed in" in sandbox.run(f"--import-mode={mode}")


def test_plugin_suite_of_the_docstrings(sandbox: Sandbox) -> None:
    """Goal: every fixture and factory has an example, and all of them pass, in one pytest."""
    count = 0
    for name, docstring in public_of_testing().items():
        (block,) = blocks(docstring)
        sandbox.write(block, f"test_{name.replace('.', '_')}.py")
        count += block.count("\ndef test_")
    assert f"{count} passed" in sandbox.run()


@pytest.mark.feature("kill, suspend, resume in a user's tests")
@pytest.mark.feature("an example project")
@pytest.mark.slow
def test_plugin_suite_of_the_documented_project(sandbox: Sandbox) -> None:
    """Goal: what the page on pytest shows is a file that runs."""
    project = ROOT / "docs/examples/pytest_project"
    page = (ROOT / "docs/pytest.md").read_text()
    for file in sorted(project.iterdir()):
        assert file.read_text().strip() in page, f"docs/pytest.md does not show {file.name}"
        shutil.copy(file, sandbox.path)

    assert re.search(r"\d passed in", sandbox.run())
