"""Memory that this process can have, and what is free of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base import machine_memory
from luwu.base.machine_memory import free_memory_bytes, memory_limit


@pytest.mark.parametrize("names", machine_memory._USED.items())
def test_the_tightest_group_around_us_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    """I5. Goal: of groups within one another, of either version, what the least lets us have, and
    what the fullest has left; one without a limit is none."""
    limit, used = names
    for group, numbers in {"a": ("900", "890"), "b": ("700", "100"), "c": ("max", "5")}.items():
        (tmp_path / group).mkdir()
        for name, number in zip((limit, used), numbers, strict=True):
            (tmp_path / group / name).write_text(f"{number}\n")
    groups = [tmp_path / group / limit for group in ("c", "b", "a", "gone")]
    monkeypatch.setattr(machine_memory, "_group_files", lambda: groups)
    assert memory_limit() == (700, f"the control group at {tmp_path / 'b'}")
    assert free_memory_bytes() == 10
