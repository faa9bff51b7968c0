"""States that nodes of the day of recording wrote: nodes of today read them, and go on from them.

Each is a tar of the state directory of a job that was stopped after two of four steps. Going on
from it ends with the digest of a job that was never stopped.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.evidence.digests import WAYS
from tests.evidence.jobs import digest_at, run
from tests.suites.unpack import unpack_all

RECORDS: Final = Path(__file__).parent / "records"
STOPPED_AT: Final = 2
STATES: Final[Mapping[str, str]] = {
    "momentum": "sgd with momentum, at_step",
    "two-nodes": "two nodes",
}
"""Name of the file -> the way that wrote it."""
STOPPED_DIGESTS: Final = RECORDS / "states.txt"


def write_all() -> None:
    """Write the states, and their digests."""
    lines = []
    for name, way in STATES.items():
        with tempfile.TemporaryDirectory(prefix="luwu-evidence-") as temporary:
            directory = Path(temporary)
            run(WAYS[way], directory, stop_at=STOPPED_AT)
            with tarfile.open(_path(name), "w:xz", preset=9) as tar:
                tar.add(directory / "state", "state")
            lines.append(f"{digest_at(WAYS[way], directory)} {name}")
    STOPPED_DIGESTS.write_text("\n".join([*lines, ""]))


def unpack(name: str, directory: Path) -> None:
    """Put the state of a name into a directory."""
    with tarfile.open(_path(name), "r:xz") as tar:
        unpack_all(tar, directory)


def expected() -> dict[str, str]:
    """Digest of each state as it was written."""
    pairs = (line.split() for line in STOPPED_DIGESTS.read_text().splitlines())
    return {name: digest for digest, name in pairs}


def _path(name: str) -> Path:
    return RECORDS / f"state-{name}.tar.xz"
