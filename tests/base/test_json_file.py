"""JSON files whose writer is killed in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from luwu.base.json_file import read_json, remove_partial, write_json

SCRIPT = """if True:
    import os, signal, sys
    from pathlib import Path
    from luwu.base.json_file import write_json
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    write_json(Path(sys.argv[1]), {"new": 2})
"""


def test_what_a_killed_writer_began_is_removed(tmp_path: Path) -> None:
    """I8. Goal: the file is as it was, and what its writer left goes, by its number alone."""
    file = tmp_path / "counters" / "switch.json"
    file.parent.mkdir()
    write_json(file, {"old": 1})
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(file)]) as writer:
        assert writer.wait() == -signal.SIGKILL
    assert read_json(file) == {"old": 1}
    (left,) = tmp_path.rglob("*.partial")
    remove_partial(tmp_path, writer.pid + 1)
    assert left.exists()
    remove_partial(tmp_path, writer.pid)
    assert list(file.parent.iterdir()) == [file]
