"""Small jobs under the real commands, each followed by a look for what it should not have left."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from luwu.base.torch_import import PRELOAD
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.source import RestingState
from luwu.testing.cluster import Cluster, clean_environ
from luwu.testing.leftovers import until_empty

SMALL = ("--layers", "2", "--width", "64", "--context", "16", "--batch", "2")
"""A GPT of 133,888 parameters: three units, 1.6 MB of state."""

WITHOUT_TORCH: Final = {PRELOAD: "0"}
"""Goes into the environment of a run of `tests/light_job.py`: it saves a third of the time."""

DEADLINE_S = 200.0
PLAIN_S = 1800.0
"""Plain torch may have thousands of steps to make, after a soak."""

ON_THE_CPU: Final = {"CUDA_VISIBLE_DEVICES": ""}
"""Of the environment of a job whose bits are compared with those of another device's."""


@dataclass(frozen=True)
class Comparison:
    """What `luwu compare` wrote."""

    document: dict[str, Any]
    output: str

    def arm(self, name: str = "luwu") -> dict[str, Any]:
        return next(arm for arm in self.document["arms"] if arm["name"] == name)


def compare(
    directory: Path, *flags: str, name: str = "run", arms: str = "luwu", threads: int | None = 1
) -> Comparison:
    """Run a comparison to its end, with nothing left behind (I8).

    `threads`: what OMP_NUM_THREADS says; None leaves it out, as most users do.
    """
    outside = Outside(directory / f"{name}.tmp")
    document = directory / f"{name}.json"
    arguments = [
        "compare", "--run-dir", str(directory / name), "--json", str(document),
        "--data", str(text_file(directory)), "--arms", arms, *flags,
    ]  # fmt: skip
    environ = {"TMPDIR": str(directory / f"{name}.tmp"), "OMP_NUM_THREADS": str(threads or "")}
    with Cluster(directory, arguments, name=name, environ=environ) as cluster:
        assert cluster.wait(DEADLINE_S) == 0, cluster.output
        assert cluster.leftovers() == []
        assert cluster.processes() == []
    assert outside.leftovers() == []
    return Comparison(json.loads(document.read_text()), cluster.output)


@functools.cache
def plain_digest(steps: int, workers: int = 2, sizes: tuple[str, ...] = SMALL) -> str:
    """The digest of the weights after plain torch, in one process, has trained what `workers` would
    have: where gradients are added by rank, that of every run of ours (I3, I4)."""
    with tempfile.TemporaryDirectory(prefix="luwu-plain-") as name:
        directory = Path(name)
        command = [
            sys.executable, "-m", "workers.train", "--arm", "single", "--global-workers",
            str(workers), "--steps", str(steps), "--data", str(text_file(directory)), *sizes,
            "--result", str(directory / "plain.json"),
        ]  # fmt: skip
        environ = {**clean_environ(), "OMP_NUM_THREADS": "1", **ON_THE_CPU}
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PLAIN_S, check=False
        )
        assert done.returncode == 0, done.stderr
        digest = json.loads((directory / "plain.rank0.json").read_text())["weights_digest"]
    assert isinstance(digest, str)
    return digest


def light_digest(steps: int, workers: int = 2) -> str:
    """The same of `tests/light_job.py`, after a loop over `torch.optim`."""
    from tests.helpers.local_job import Job, plain

    return plain(Job(world_size=workers, steps=steps)).digest


def exported(state: Path, *, average: bool = False) -> tuple[int, str]:
    """The step of a state at rest, and the digest of the weights that are exported from it."""
    with RestingState(state) as source, tempfile.TemporaryDirectory() as out:
        found = export_state(source, Path(out) / "out", ExportOptions(average=average))
    return found.step, found.weights_digest


def text_file(directory: Path) -> Path:
    """Text to train on, from a seed: reading the standard library takes longer than training."""
    path = directory / "text"
    if not path.exists():
        words = np.random.default_rng(7).integers(97, 123, (200, 5), dtype=np.uint8)
        order = np.random.default_rng(8).zipf(1.3, 20_000) % len(words)
        path.write_bytes(b" ".join(words[index].tobytes() for index in order))
    return path


class Outside:
    """The place outside of a run directory where a run might leave something."""

    def __init__(self, temporary: Path) -> None:
        temporary.mkdir()
        self._temporary = temporary

    @property
    def environ(self) -> Mapping[str, str]:
        """Sends temporary files of a run without torch to a place of its own."""
        return {"TMPDIR": str(self._temporary), "OMP_NUM_THREADS": "1", **WITHOUT_TORCH}

    def leftovers(self) -> list[str]:
        """Temporary files of the run; its shared memory has no name."""
        return until_empty(
            lambda: [str(path) for path in self._temporary.rglob("*") if not path.is_dir()],
            limit_s=2.0,
        )


def assert_accounted_for(rows: Sequence[Mapping[str, Any]]) -> None:
    """L1: all that was sent over each link was received or dropped, or is on its way."""
    assert rows
    for row in rows:
        for counts in (row["messages"], row["bytes"]):
            gone = counts["received"] + counts["dropped"] + counts["in_flight"]
            assert counts["sent"] + counts["repeated"] == gone, row
            assert counts["dropped"] == counts["lost"] + counts["overflowed"] + counts["cut"], row
