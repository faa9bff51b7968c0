"""What a soak makes of its samples: slopes, descriptors, files; no process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.soak import FileGrowth, Shape, Soak
from tests.soak_faults import draw
from tests.soak_samples import (
    ENOUGH_S,
    EVENTS_ONCE,
    HOURLY,
    WARM_S,
    WINDOW,
    Lifetime,
    said_by_processes,
    slope_of,
)
from tests.unit.waiting import is_soon

MIB = 1024**2
ROOT = Path(__file__).resolve().parents[2]


def lifetime(
    seconds: int, mib_per_hour: float, *, at_bytes: int = 100 * MIB, noise: int = 0, seed: int = 0
) -> Lifetime:
    """A process that first takes 50 MiB while it gets warm, and then grows."""
    random = Random(seed)
    life = Lifetime("node")
    for time_s in range(seconds):
        warm = int(50 * MIB * min(1.0, time_s / WARM_S))
        grown = int(time_s * mib_per_hour / HOURLY)
        life.times_s.append(1000.0 + time_s)
        life.allocated_bytes.append(at_bytes + warm + grown + random.randint(-noise, noise))
        life.resident_bytes.append(at_bytes + warm)
        life.descriptors.append(30)
        life.events.append(12)
    return life


@pytest.mark.parametrize("mib_per_hour", [0.0, 0.5, 3.0, -2.0])
def test_a_slope_is_found_over_many_short_lives(mib_per_hour: float) -> None:
    """Goal: growth within each life counts, that from one to the next and the warm-up do not."""
    lives = [
        lifetime(300, mib_per_hour, at_bytes=(100 + 7 * number) * MIB, noise=8192, seed=number)
        for number in range(12)
    ]
    slope = slope_of(lives)
    assert slope is not None
    assert slope.bytes_per_s * HOURLY == pytest.approx(mib_per_hour, abs=3 * slope.error * HOURLY)
    assert slope.seconds == 12 * (299 - WARM_S)
    assert slope.is_violation == (mib_per_hour > 2)


def test_little_says_nothing() -> None:
    assert slope_of([]) is None
    assert slope_of([lifetime(30, 100.0)]) is None
    short = slope_of([lifetime(600, 100.0)])
    assert short is not None
    assert short.seconds < ENOUGH_S
    assert not short.is_violation
    long = slope_of([lifetime(2000, 1.5)])
    assert long is not None
    assert long.is_violation


def test_descriptors_that_come_back_are_no_growth() -> None:
    life = lifetime(200, 0)
    assert life.growths() == []
    life.descriptors[60:80] = [80] * 20
    assert life.growths() == []
    life.descriptors[120:] = [81] * 80
    assert life.growths() == ["node: 81 descriptors at its end, 80 at most in its first half"]
    life.descriptors[:] = [20] * 30 + [30] * 170  # a peer was away when it began
    assert life.growths() == []
    life.events[150:] = [12 + EVENTS_ONCE] * 50
    assert life.growths() == []
    life.events[150:] = [13 + EVENTS_ONCE] * 50
    assert life.growths() == ["node: 21 events at its end, 12 at most in its first half"]
    short = lifetime(50, 0)
    short.descriptors[-10:] = [90] * 10
    assert short.growths() == []  # too short a life to tell


def test_what_is_resident_may_fill_a_little() -> None:
    """Goal: from the warm-up to the end of a life, whatever was there for a moment."""
    life = lifetime(300, 0)
    life.resident_bytes[150:] = [151 * MIB] * 150
    life.resident_bytes[200] = 400 * MIB
    assert life.growths() == []
    life.resident_bytes[-WINDOW:] = [153 * MIB] * WINDOW
    assert life.growths() == ["node: 3.00 MiB more are resident than at 120 s"]


KEPT = """if True:
    import sys
    kept = [object() for _ in range(1_000_000)]
    print("ready", flush=True)
    sys.stdin.read()
"""
FREED = """if True:
    import sys, threading
    freed = threading.Barrier(21)
    def free():
        del [bytearray(size) for size in range(40, 1000, 16) for _ in range(7)][:]
        freed.wait()
        sys.stdin.read()
    for _ in range(20):
        threading.Thread(target=free).start()
    freed.wait()
    print("ready", flush=True)
"""


@pytest.mark.parametrize(
    ("script", "least_mb", "most_mb"),
    [pytest.param(KEPT, 16, 64, marks=pytest.mark.slow), (FREED, 0, 1)],
)
def test_a_process_says_what_it_has_allocated(
    tmp_path: Path, script: str, least_mb: int, most_mb: int
) -> None:
    """Goal: a million objects of Python are in what it says; what malloc keeps of what threads have
    freed, 5 MB here, is not."""
    environ = {**os.environ, **said_by_processes(tmp_path)}

    def begun(text: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", text]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe)

    def said_by(process: subprocess.Popen[bytes]) -> int:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        path = tmp_path / str(process.pid)
        path.unlink(missing_ok=True)  # of what was before that
        assert is_soon(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    with begun(script) as much, begun(KEPT.replace("1_000_000", "1")) as little:
        assert least_mb <= (said_by(much) - said_by(little)) / 1e6 < most_mb


def test_files_that_go_on_coming_are_growth(tmp_path: Path) -> None:
    (tmp_path / "soak").mkdir()
    growth = FileGrowth(tmp_path)
    for number in range(12):
        if number < 4:
            (tmp_path / "soak" / f"log-{number}").touch()
        growth.note("a fault")
    assert growth.violations() == []
    growing = FileGrowth(tmp_path)
    for number in range(12):
        (tmp_path / "soak" / f"leak-{number}").touch()
        growing.note("a fault")
    (said,) = growing.violations()
    assert "files after the later faults" in said


def test_shapes_are_a_function_of_the_seed() -> None:
    shapes = [Shape.drawn(Random(seed)) for seed in range(40)]
    assert shapes == [Shape.drawn(Random(seed)) for seed in range(40)]
    assert {shape.transport for shape in shapes} == {"auto", "tcp", "ipc"}
    assert {shape.has_tree for shape in shapes} == {True, False}


def test_a_slope_that_is_too_steep_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    soak = Soak(faults=60)
    soak.lifetimes["node"] = [lifetime(2500, 4.0)]
    soak.lifetimes["switch"] = [lifetime(2500, 0.2)]
    soak.tell()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "60 trials, 1 violations"
    assert lines[-2].startswith("VIOLATION: memory of node: +4.00 MiB/h")
    assert re.fullmatch(r" +2\d\d\d s \d+\.\d\d to \d+\.\d\d MiB", lines[1])


def test_huge_pages_are_off_in_what_a_soak_starts() -> None:
    """Goal: processes of runs have none, whoever starts them."""
    script = """if True:
        import subprocess, sys
        from tests.soak import without_huge_pages
        without_huge_pages()
        subprocess.run([sys.executable, "-c", "print(open('/proc/self/status').read())"])
    """
    told = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert "THP_enabled:\t0" in told


@pytest.mark.parametrize("seed", range(5))
def test_faults_are_a_function_of_the_seed(seed: int) -> None:
    """Goal: the same faults again, each in a window of its own, of every kind and process."""
    victims = [("node", 0), ("switch-top", 0), ("switch-left", 0), ("worker", 0), ("worker", 1)]
    faults = draw(seed, victims, 100, 30)
    assert faults == draw(seed, victims, 100, 30)
    assert faults != draw(seed + 1, victims, 100, 30)
    assert [fault.at_ns // 30 for fault in faults] == list(range(100))
    assert {(each.is_kill, each.role, each.rank) for each in faults} == {
        (is_kill, *victim) for is_kill in (True, False) for victim in victims
    }
