"""Checks of `--data`, without loading torch."""

from __future__ import annotations

from pathlib import Path

from luwu.base.errors import ConfigError

TOKEN_SUFFIX = ".bin"
"""Such a file holds little-endian uint16 tokens; any other is text, read as bytes."""


def check_data_file(path: Path) -> None:
    """Raise ConfigError unless the file can be read as tokens."""
    if not path.is_file():
        found = "is a directory" if path.is_dir() else "does not exist"
        raise ConfigError(
            f"--data {path} {found}; name a text file or a .bin file of uint16 tokens"
        )
    size = path.stat().st_size
    if size == 0:
        raise ConfigError(f"--data {path} is empty; name a file with text or uint16 tokens in it")
    if path.suffix == TOKEN_SUFFIX and size % 2:
        raise ConfigError(
            f"--data {path} has {size} bytes, an odd number: not a file of uint16 tokens; "
            "write it with numpy.uint16, or rename it if it is text"
        )
