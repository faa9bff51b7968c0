"""A machine without a C compiler: the slow kernels are used, and somebody says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.commands import doctor
from luwu.launch.serving import NO_COMPILER, decide_sizes


def test_the_slow_kernels_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `luwu run`, `compare` and `up` say it before anything starts; the doctor does not say
    that nothing is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"no C compiler here: {NO_COMPILER}" in decide_sizes(RunConfig(), None).warnings
    (kernel,) = [each for each in doctor.examine(tmp_path) if each.name == "kernel"]
    assert kernel.text == "portable: no C compiler: there is no `cc` on the PATH"
    assert kernel.advice == NO_COMPILER
