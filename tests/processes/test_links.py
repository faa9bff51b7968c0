"""Emulated links under the real commands: what a run says of them, and that no bit changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.jobs import SMALL, Comparison, assert_accounted_for, compare, plain_digest

STEPS = 4
FLAGS = ("--workers", "2", "--steps", str(STEPS), "--durability", "process", *SMALL)
BAD = ("--loss", "0.1", "--duplicate", "0.1", "--reorder", "16")
LINKS = {"worker (ranks 0)", "worker (ranks 1)", "node (ranks 0, 1)"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """The same job without links."""
    return compare(tmp_path_factory.mktemp("plain"), *FLAGS, name="plain")


@pytest.mark.faults(12)
@pytest.mark.faults(13)
@pytest.mark.faults(14)
@pytest.mark.feature("emulated links")
@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_bad_network_changes_no_bit_and_is_accounted_for(
    plain: Comparison, tmp_path: Path, transport: str
) -> None:
    """I1, I3, L1. Goal: a tenth of the messages lost, a tenth repeated, up to 16 overtaking one, at
    1 Gbit/s and 0.2 ms: the weights of a run without links, and a count of every message.
    Method: real runs; the report says what is emulated."""
    bad = compare(
        tmp_path, *FLAGS, *BAD, "--link", "1gbit,delay=0.2ms", "--transport", transport, name="bad"
    )
    assert bad.arm()["weights_digest"] == plain.arm()["weights_digest"]
    assert bad.arm()["loss"] == plain.arm()["loss"]
    assert bad.arm()["aborts_count"] == 0
    assert plain.arm()["links"] == []
    rows = bad.arm()["links"]
    assert {(row["link"], row["direction"]) for row in rows} == {
        (name, way) for name in LINKS for way in ("up", "down")
    }
    assert_accounted_for(rows)
    assert {row["label"] for row in rows} == {"emulated"}
    assert all(row["messages"]["received"] > 0 for row in rows)
    assert sum(row["messages"]["lost"] for row in rows) > 0
    assert "emulated links, dropped" in bad.output
    assert "emulated links" not in plain.output


@pytest.mark.slow  # the arithmetic of the factor is tested in units
@pytest.mark.feature("emulated links")
@pytest.mark.feature("slowing down a whole cluster")
@pytest.mark.usefixtures("on_the_cpu")
def test_dilation_slows_compute_link_and_disk(tmp_path: Path) -> None:
    """Goal: the keys reach whoever slows down. Method: dilated by 10, a step takes at least the
    dilated compute of its units, forward and backward, and its digest is that of plain torch."""
    asked = ("--compute-ms", "4", "--link", "10gbit", "--disk-rate", "2GB/s")
    slow = compare(tmp_path, *FLAGS, *asked, "--dilation", "10", name="slow")
    units = 3
    assert slow.arm()["step_seconds_median"] >= 2 * units * 0.040
    assert slow.arm()["weights_digest"] == plain_digest(STEPS)
    assert {row["label"] for row in slow.arm()["links"]} == {"emulated"}
