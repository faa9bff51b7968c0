"""States and an export of the day of recording: programs of today read them, and go on from them.

Each is a tar of the state directory of a job that was stopped after two of four steps, or of the
export of that. Going on from it ends with the digest of a job that was never stopped. Records stay
when a version is released, as those of its states: docs/stability.md.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.evidence.digests import WAYS
from tests.evidence.jobs import digest_at, run
from tests.helpers.exports import bring, export
from tests.suites.unpack import unpack_all

RECORDS: Final = Path(__file__).parent / "records"
STOPPED_AT: Final = 2
STATES: Final[Mapping[str, str]] = {
    "momentum": "sgd with momentum, at_step",
    "two-nodes": "two nodes",
    "fewer-bits": "fewer bits, an average",
    "export": "fewer bits, an average",
}
"""Name of the file -> the way that wrote it."""
STOPPED_DIGESTS: Final = RECORDS / "states.txt"


def write_all() -> None:
    """Write the states that there are none of, and their digests."""
    found = expected()
    for name, way in STATES.items():
        if name in found:
            continue
        with tempfile.TemporaryDirectory(prefix="luwu-evidence-") as temporary:
            directory = Path(temporary)
            run(WAYS[way], directory, stop_at=STOPPED_AT)
            kept = "export" if name == "export" else "state"
            if kept == "export":
                export(directory / "state", directory / kept)
            with tarfile.open(_path(name), "w:xz", preset=9) as tar:
                tar.add(directory / kept, kept)
            found[name] = digest_at(WAYS[way], directory)
    text = "".join(f"{digest} {name}\n" for name, digest in found.items())
    STOPPED_DIGESTS.write_text(text)


def unpack(name: str, directory: Path) -> None:
    """Put the state of a name into a directory; one that was exported is imported."""
    with tarfile.open(_path(name), "r:xz") as tar:
        unpack_all(tar, directory)
    if (directory / "export").exists():
        bring(directory / "export", directory / "state")


def expected() -> dict[str, str]:
    """Digest of each state as it was written."""
    pairs = (line.split() for line in STOPPED_DIGESTS.read_text().splitlines())
    return {name: digest for digest, name in pairs}


def _path(name: str) -> Path:
    return RECORDS / f"state-{name}.tar.xz"
