"""luwu export and import: memory within a budget, and reading ahead within its buffers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from luwu.checkpoint.read_ahead import ReadAhead, Want
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description
from switch_emu.store import DecidedStep
from tests.helpers.exports import write_state
from tests.helpers.local_job import KIB, MIB

ROOT = Path(__file__).resolve().parents[2]


class CountedSource:
    """A state that counts what is read of it."""

    record = DecidedStep(version=0, attempt=0)
    attempt = 0

    def __init__(self, layout: Layout) -> None:
        self.description = Description(layout=layout, optimizer="lion", state_fields=("m",))
        self.reads: Counter[tuple[int, str]] = Counter()

    def read_field(self, chunk: int, field: str, into: memoryview) -> None:
        self.reads[chunk, field] += 1
        into[:] = bytes([chunk % 251]) * len(into)


@pytest.mark.parametrize("buffers_count", [2, 3, 7])
def test_export_import_reads_ahead_in_order_and_in_bounds(buffers_count: int) -> None:
    """Goal: a unit whose registration goes back and forth between trained and frozen chunks is
    served in order; buffers stay within their number, and few chunks are read again."""
    parameters = tuple(
        Parameter(name=f"p{i}", shape=(700 + 64 * i,), trainable=i % 2 == 0) for i in range(40)
    )
    layout = Layout(
        parameters=parameters, units=(Unit(name="u", parameters=tuple(range(40))),),
        chunk_bytes=16 * KIB,
    )  # fmt: skip
    source = CountedSource(layout)
    wants = [Want(index, "weight", *piece) for index in range(40) for piece in layout.pieces(index)]
    ahead = ReadAhead(source, wants, buffers_count)
    served = []
    for want, values in ahead:
        assert values.size == want.part.elems
        assert values.tobytes()[:1] == bytes([want.chunk % 251])
        served.append(want)
    assert served == wants
    assert ahead.taken_bytes <= buffers_count * 16 * KIB
    again = sum(source.reads.values()) - len(layout.chunks)
    assert again == 0 if buffers_count > 2 else again < len(wants)


MEASURE = """
import json, re, sys
from pathlib import Path

import switch_emu.node.pages  # what import needs, so that only growth is seen
from luwu.commands.main import main

def kib(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

small, large, budget = sys.argv[1:]
flags = ["--memory-budget", budget]
main(["export", small, small + "-out", *flags])
main(["import", small + "-out", "--state", small + "-new", *flags])
grown = []
out = large + "-out"
for line in (["export", large, out], ["import", out, "--state", large + "-new"]):
    before = kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    assert main([*line, *flags, "--json"]) == 0
    grown.append((kib("VmHWM") - before) * 1024)
print("grown", json.dumps(grown), file=sys.stderr)
"""


@pytest.mark.feature("export and import")
def test_export_import_stays_within_the_budget(tmp_path: Path) -> None:
    """I5. Goal: a state 8 times the budget is exported and imported within it.
    Method: a process of its own; the growth of its peak resident memory, from after a small export
    and import, which load what there is to load; and the exporter's own count of its buffers."""
    budget = 8 * MIB
    for name, elems in (("small", 64 * KIB), ("large", budget * 8 // 12)):
        make_state(tmp_path / name, elems)
    state_bytes = sum(f.stat().st_size for f in (tmp_path / "large").glob("side0.dat"))
    assert state_bytes >= 8 * budget
    small, large = str(tmp_path / "small"), str(tmp_path / "large")

    result = subprocess.run(
        [sys.executable, "-c", MEASURE, small, large, "8MiB"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert result.returncode == 0, result.stderr
    documents = result.stdout[result.stdout.index("{") :]
    exported, _ = json.JSONDecoder().raw_decode(documents)
    assert 0 < exported["buffer_bytes"] <= budget
    grown = json.loads(result.stderr.split("grown ")[1])
    assert max(grown) <= budget, grown


def make_state(path: Path, elems: int) -> None:
    """A state at rest, of three parameters."""
    third = elems // 3 // 64 * 64
    layout = Layout(
        parameters=tuple(Parameter(name=f"p{i}", shape=(third + 64,)) for i in range(3)),
        units=tuple(Unit(name=f"u{i}", parameters=(i,)) for i in range(3)),
        chunk_bytes=64 * KIB,
    )
    generator = np.random.default_rng(elems)
    weights = {p.name: generator.standard_normal(p.shape) for p in layout.parameters}
    description = Description(layout=layout, optimizer="adamw", state_fields=("m", "v"))
    write_state(path, description, weights)
