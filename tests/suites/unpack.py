"""Archives of our own, unpacked by any Python that we support."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack_all(archive: tarfile.TarFile, directory: Path) -> None:
    """Write all members below a directory; Python before 3.11.4 has no filters."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(directory, filter="data")
    else:
        archive.extractall(directory)
