"""Fixtures of tests with real processes."""

from __future__ import annotations

import pytest

from tests.processes.jobs import ON_THE_CPU


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test starts has the device of `plain_digest`."""
    for name, value in ON_THE_CPU.items():
        monkeypatch.setenv(name, value)
