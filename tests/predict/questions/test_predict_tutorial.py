"""docs/tutorial-smartnics.md: its commands print what it shows."""

from __future__ import annotations

from pathlib import Path

from tests import tutorial


def test_the_tutorial_shows_what_its_commands_print(tmp_path: Path) -> None:
    """Goal: outputs are those of today. Otherwise: python -m tests.tutorial, and read
    whether what it says of them still holds."""
    text = tutorial.PAGE.read_text(encoding="utf-8")
    assert tutorial.made(text, tmp_path) == text
