"""LuWu's own top-level packages, where a user's folder has the name of one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from luwu.base import own
from luwu.base.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_ours_is_run_whatever_comes_first(tmp_path: Path) -> None:
    """Goal: `python -m luwu.base.own` runs our module with its arguments, as `__main__`."""
    write(tmp_path / "switch_emu" / "__init__.py", "raise SystemExit('not ours')")
    done = subprocess.run(
        [sys.executable, *own.own_module("switch_emu"), "pigeon"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "python -m switch_emu: error: argument role: invalid choice" in done.stderr


def test_a_foreign_package_in_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a package that is imported already is not exchanged behind the back of its users."""
    foreign = ModuleType("workers")
    foreign.__path__ = [str(tmp_path / "workers")]
    monkeypatch.setitem(sys.modules, "workers", foreign)
    with pytest.raises(ConfigError, match=f"workers is that of {tmp_path}/workers in this process"):
        own.take("workers")
    assert sys.modules["workers"] is foreign


def test_nobody_is_sent_to_another_project() -> None:
    """Goal: the package `luwu` of the index is a stranger's: no text tells anybody to install it.
    What pip is to install stands in texts by our distribution's name, or as a path."""
    bad = re.compile(r"\bluwu\[[a-z]|pip3? (?:install|download)[^\n`;]*?[ '\"]luwu(?![\w/.-])")
    suffixes = {".py", ".md", ".toml", ".yaml", ".sbatch", ".txt", ".j2", ""}
    files = [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml", "constraints.txt")]
    for directory in ("luwu", "switch_emu", "workers", "docs", "benchmarks", ".ci"):
        files += (each for each in (ROOT / directory).rglob("*") if each.suffix in suffixes)
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in files
        if file.is_file()
        for match in bad.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []
