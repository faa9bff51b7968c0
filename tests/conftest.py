"""What holds for every test: none leaves a process, and a failure says how to see it again."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.launch.processes.children import command_of, is_alive

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
"""Compute threads that wait leave the cores to the other test process; torch reads it once."""

ENDING_S = 2.0
"""How long a process that is ending may take once its test is over."""
FIRST = {"faults", "integrations", "plugin", "processes", "simulate"}
"""Rooms of few and long tests: at the end, one of them would be waited for alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--gpu`: see the GPUs of this machine. Else every test is the same on any machine."""
    parser.addoption("--gpu", action="store_true", help="let the tests see GPUs")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from torch here and from all processes that are started, unless asked for."""
    if not config.getoption("gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of FIRST, and skip those marked `gpu` where there is no GPU."""
    items.sort(key=lambda item: not FIRST.intersection(Path(item.nodeid).parts[:2]))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    why = _no_gpu() if marked else None
    if why is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, and take all that was collected out of its sight.

    torch, pytest and nine thousand tests stay to the end: each of the hundreds of `gc.collect()` in
    tests would look at all of it, half a second of a processor; while it grows, 2 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _no_gpu() -> str | None:
    import torch  # only if such a test is asked for: it takes seconds

    available = torch.cuda.is_available()
    return None if available else f"no CUDA device, or no --gpu (torch {torch.__version__})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the seeds of a failed test, and the command that runs it again."""
    report = yield
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    seeds = {name: value for name, value in parameters.items() if "seed" in name}
    if report.failed and seeds:
        values = ", ".join(f"{name}={value}" for name, value in seeds.items())
        report.sections.append(("seed", f"{values}; again: python -m pytest '{item.nodeid}'"))
    return report


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves a child process (I8); those of wider fixtures are not its own."""
    before = _children()
    yield
    end_ns = SYSTEM_CLOCK.now_ns() + int(ENDING_S * 1e9)
    while (left := _children() - before) and SYSTEM_CLOCK.now_ns() < end_ns:
        sleep(0.02)
    told = [f"{pid} ({command_of(pid)})" for pid in sorted(left)]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not told, f"the test left processes: {'; '.join(told)}"


def _children() -> set[int]:
    """Our child processes that are alive; none where the kernel does not list them."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(int(pid) for pid in path.read_text().split())
        except OSError:
            continue  # the thread has ended
    return {pid for pid in found if is_alive(pid)}
