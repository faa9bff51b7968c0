"""The pytest plugin (entry point `luwu` of `pytest11`): fixtures that bring a switch and a node.

    luwu_run       luwu_run(fn, workers=2): fn in processes of a `luwu run`; results by rank
    luwu_inproc    the same in threads of this process, in milliseconds
    luwu_cluster   luwu_cluster(fn, workers=2): the same without waiting; .kill("worker", 1)

    @pytest.mark.luwu(workers=4, timeout=120)          defaults of these fixtures for one test

pytest loads this in every project that has luwu installed, so it imports pytest and the standard
library only; what a fixture needs is imported when the fixture is used. `docs/pytest.md` tells
users more; each option has an ini key of its name, and an argument or marker goes before both.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from luwu.testing.record import RECORD, Record
from luwu.testing.settings import check_marker, setting

if TYPE_CHECKING:
    import pluggy

    from luwu.testing.fixtures import ClusterFactory, InprocRunner, Runner


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and ini keys."""
    group = parser.getgroup("luwu", "LuWu: switch and optimizer node for tests")
    for name, shape, text in (
        ("workers", "N", "worker processes where a test does not say; 2 unless given"),
        ("timeout", "SECONDS", "how long a run of workers may take; 60 unless given"),
    ):
        group.addoption(f"--luwu-{name}", metavar=shape, default=None, help=text)
        parser.addini(f"luwu_{name}", text, default=None)
    text = "keep states and run directories of tests that pass, too"
    group.addoption("--luwu-keep", action="store_true", default=None, help=text)
    parser.addini("luwu_keep", text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; reject unusable settings before anything runs."""
    config.addinivalue_line(
        "markers", "luwu(workers, timeout): defaults of luwu_run, luwu_inproc and luwu_cluster"
    )
    for name in ("workers", "timeout"):
        setting(config, name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reject markers that cannot be used before anything runs."""
    for item in items:
        check_marker(item)


@pytest.hookimpl(hookwrapper=True)  # not the newer `wrapper`: an old pytest must load us too
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """Show the test's own frames, and the output of the processes of a failed test."""
    with hidden_frames(item):
        outcome = yield
    report = outcome.get_result()
    record = item.stash.get(RECORD, None)
    if record is not None and report.failed:
        record.failed = True
        is_whole = item.config.getoption("verbose") >= 2
        report.sections.extend(record.sections(report.longreprtext, is_whole=is_whole))
    if record is not None and call.when == "teardown":
        record.forget()


@pytest.fixture
def luwu_record(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Record, None, None]:
    """Record of what luwu's fixtures start in this test; fails it if anything is left."""
    record = Record(request.node, tmp_path_factory)
    request.node.stash[RECORD] = record
    yield record
    record.check()


@pytest.fixture
def luwu_run(request: pytest.FixtureRequest, luwu_cluster: ClusterFactory) -> Runner:
    """Call a function in the workers of a `luwu run`: `luwu_run(fn, workers=2, args=(), flags=())`.

    `fn(rank, *args)` must be at the top level of a module. Returns what it returned, by rank;
    raises the first failure, with that worker's traceback. `flags` are those of `luwu run`.

    Examples:
        ```python
        import pytest

        import luwu


        def half(rank, number):
            if number % 2:
                raise ValueError(f"{number} is odd")
            return number // 2 + rank


        def test_results_by_rank(luwu_run):
            assert luwu_run(half, workers=2, args=(6,)) == [3, 4]


        def test_failure_of_a_worker(luwu_run):
            with pytest.raises(luwu.LuwuError, match="7 is odd"):
                luwu_run(half, workers=2, args=(7,))


        def train(rank, steps):
            import torch  # in the worker only: the test process stays light

            model = torch.nn.Linear(4, 4)
            luwu.init()
            luwu.fully_shard(model)
            optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
            first = optimizer.next_step
            for _ in range(first, steps):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            return first


        def test_training_goes_on(luwu_run, tmp_path):
            flags = ("--state", str(tmp_path / "state"), "--resume")
            assert luwu_run(train, workers=1, args=(3,), flags=flags) == [0]
            assert luwu_run(train, workers=1, args=(5,), flags=flags) == [3]
        ```
    """
    from luwu.testing.fixtures import Runner

    return Runner(request, luwu_cluster)


@pytest.fixture
def luwu_inproc(
    request: pytest.FixtureRequest, luwu_record: Record
) -> Generator[InprocRunner, None, None]:
    """Call a function in threads of this process: `luwu_inproc(fn, workers=2, args=())`.

    `fn(rank, *args)` may be any callable and return anything. It takes milliseconds instead of
    seconds, and a debugger works.

    Examples:
        ```python
        import torch

        import luwu


        def test_ranks_end_with_the_mean(luwu_inproc):
            def train(rank):
                model = torch.nn.Linear(1, 1, bias=False)
                luwu.init()
                luwu.fully_shard(model)
                optimizer = luwu.optim.SGD(model.parameters(), lr=1.0)
                model(torch.full((1, 1), float(rank))).sum().backward()
                return optimizer.step().grad_norm

            assert luwu_inproc(train, workers=3) == [1.0, 1.0, 1.0]
        ```
    """
    from luwu.testing.fixtures import InprocRunner

    runner = InprocRunner(request, luwu_record)
    yield runner
    runner.close()


@pytest.fixture
def luwu_cluster(
    request: pytest.FixtureRequest, luwu_record: Record
) -> Generator[ClusterFactory, None, None]:
    """Start all processes of a `luwu run`: `luwu_cluster(fn_or_script, workers=2, flags=())`.

    What it returns kills, stops and waits for them: `kill`, `suspend`, `resume`, `wait_for_steps`,
    `wait`, `returned`.

    Examples:
        ```python
        import threading


        def waits(rank):
            print("ready", flush=True)
            threading.Event().wait()


        def test_a_lost_worker_ends_the_run(luwu_cluster):
            cluster = luwu_cluster(waits, workers=2)
            cluster.wait_for_text("ready", log="worker-1")
            cluster.kill("worker", 1)
            assert cluster.wait() == 4
        ```
    """
    from luwu.testing.fixtures import ClusterFactory

    clusters = ClusterFactory(request, luwu_record)
    yield clusters
    clusters.close()


_PACKAGES: Final = ("luwu.base", "luwu.join", "luwu.launch", "luwu.testing")


@contextmanager
def hidden_frames(item: pytest.Item) -> Iterator[None]:
    """Hide frames of these packages from pytest, if the test uses a fixture of luwu.

    pytest looks for `__tracebackhide__` among the globals of each frame when it writes a failure
    down; `--full-trace` shows all frames.
    """
    modules = []
    if "luwu_record" in getattr(item, "fixturenames", ()):
        named = sys.modules.copy()  # in one step: another thread may import
        modules = [
            vars(module)
            for name, module in named.items()
            if name.startswith(_PACKAGES) and not hasattr(module, "__tracebackhide__")
        ]
    for each in modules:
        each["__tracebackhide__"] = True
    try:
        yield
    finally:
        for each in modules:
            each.pop("__tracebackhide__", None)
