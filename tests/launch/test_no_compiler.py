"""A machine without a C compiler: the slow kernels are used, and somebody says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.commands import doctor
from luwu.launch.serving import NO_COMPILER, decide_sizes


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_compiler")
def test_the_terminal_names_the_slow_kernels() -> None:
    """Goal: `luwu run`, `compare` and `up` say it before anything starts."""
    assert f"no C compiler here: {NO_COMPILER}" in decide_sizes(RunConfig(), None).warnings


@pytest.mark.usefixtures("no_compiler")
def test_doctor_misses_the_compiler(tmp_path: Path) -> None:
    """Goal: the doctor does not say that nothing is missing."""
    (kernel,) = [each for each in doctor.examine(tmp_path) if each.name == "kernel"]
    assert kernel.text == "portable: no C compiler: there is no `cc` on the PATH"
    assert kernel.advice == NO_COMPILER
