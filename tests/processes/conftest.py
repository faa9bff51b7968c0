"""Fixtures of tests with real processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.namespaces import Hosts, NoNamespaces, hosts
from tests.processes.commands import Terminal
from tests.processes.jobs import ON_THE_CPU


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal at which commands are typed, and that finds nothing left behind (I8)."""
    temporary = Path(tempfile.mkdtemp(prefix="luwutest-", dir="/tmp"))  # a short path, for sockets
    opened = Terminal(tmp_path, temporary)
    try:
        yield opened
        assert opened.leftovers() == []
    finally:
        opened.close()
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def network() -> Iterator[Hosts]:
    """Four hosts around a centre, in network namespaces."""
    try:
        with hosts(4) as made:
            yield made
    except NoNamespaces as exc:
        pytest.skip(f"needs network namespaces: {exc}")


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test starts has the device of `plain_digest`."""
    for name, value in ON_THE_CPU.items():
        monkeypatch.setenv(name, value)
