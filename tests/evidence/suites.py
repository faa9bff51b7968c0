"""Records of tests that drive cores by hand, or whole jobs in one process with threads and sockets.

They bring what simulated histories lack: readers, a node that is its own switch (`--no-switch`; its
two cores are recorded one by one), weights in place in shared memory, and messages that tests make
up to see them refused. In jobs with real threads the times and the order of events are those of one
run: such a record is replayed as any other, but recording it again gives another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from luwu.base.limits import PROTOCOL_VERSION
from tests.evidence.record import Head, Recorded
from tests.evidence.recorder import Recorder

TESTS = (
    "tests/unit/test_switch_fidelity.py",
    "tests/unit/test_agreement.py",
    "tests/unit/test_nic_core.py",
    "tests/unit/test_node_version_0.py",
    "tests/unit/test_readers.py",
    "tests/unit/test_local_refusals.py",
    "tests/unit/test_local_same_bits.py",
    "tests/unit/test_shared_weights.py",
)
LEFT_OUT = ("test_another_protocol_version_is_refused",)
"""Tests that change what a core reads of the product, as no record can."""
LONG, LONG_MAX, LONG_COUNT = 100, 2000, 2
"""Events: of tests with more than `LONG`, so many are kept of each function, and none beyond
`LONG_MAX`: the others repeat what these have."""


class _Listener:
    """A pytest plugin: each test is a history."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.histories: list[Recorded] = []
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.histories.append(self._recorder.begin(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def record(tests: Sequence[str] = TESTS) -> tuple[Head, list[Recorded]]:
    """Run tests and record their cores; what failed is an error."""
    recorder = Recorder(Head(PROTOCOL_VERSION))
    listener = _Listener(recorder)
    with recorder.recording():
        code = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *tests], [listener])
    if code or listener.failed:
        raise RuntimeError(f"pytest ended with {code}; failed: {listener.failed}")
    return recorder.head, _wanted(listener.histories)


def _wanted(histories: Sequence[Recorded]) -> list[Recorded]:
    found = []
    long_of: Counter[str] = Counter()
    for history in histories:
        count = sum(len(life.events) for life in history.lives)
        function = history.name.partition("[")[0]
        long_of[function] += count > LONG
        if any(name in function for name in LEFT_OUT):
            continue
        if 0 < count <= LONG or (count <= LONG_MAX and 0 < long_of[function] <= LONG_COUNT):
            found.append(history)
    return found
