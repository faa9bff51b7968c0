"""`--record` and `luwu trace --replay`: a switch's core is given again what another was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from luwu.base.errors import ConfigError
from luwu.base.seeds import derive
from luwu.commands.main import main
from switch_emu.switch.recorded import make_switch_core, replay
from tests.simulate.chaos import ROUGH, chaotic_job
from tests.simulate.cluster import Cluster
from tests.simulate.job import JOB


def recorded(path: Path, seed: int, slot_count: int | None = None) -> Path:
    """The record of a simulated switch, from its start to the end of the job."""
    cluster = Cluster(seed, chaotic_job(seed, slot_count), ROUGH)
    job = cluster.job
    with path.open("wb") as file:
        core = make_switch_core(
            job=JOB, incarnation=1, children=[1 << rank for rank in range(job.world_size)],
            limits=job.limits, retry=job.retry, parents_count=job.layout.node_count, file=file,
        )  # fmt: skip
        cluster.switch.core = core
        for count in range(2):
            cluster.world.at(derive(seed, "when", count) % 10**9, cluster.restart_node)
        cluster.world.at(derive(seed, "cancel") % 10**9, lambda: cluster.cancel(0))
        cluster.run()
    return path


def entries(path: Path) -> list[Any]:
    return list(msgpack.Unpacker(path.open("rb"), strict_map_key=True))


@pytest.mark.feature("messages that are recorded and told again")
@pytest.mark.parametrize("slot_count", [None, 2])
@pytest.mark.parametrize("seed", range(8))
def test_a_recorded_switch_is_replayed_message_by_message(
    seed: int, slot_count: int | None, tmp_path: Path
) -> None:
    """Goal: headers, times and control bytes are all that a core's answers depend on. Method: a
    history with losses, repetitions, aborts, a node that is killed twice, small pools; of some
    seeds with several nodes."""
    found = replay(recorded(tmp_path / "switch.rec", seed, slot_count))
    assert found.difference is None, f"seed {seed}: {found.difference}"
    assert not found.is_cut
    assert found.starts_count == 1
    assert found.messages_in_count > 50
    assert found.messages_out_count > 50


def test_no_gradient_is_in_a_record(tmp_path: Path) -> None:
    """Goal: it is small: of data only lengths are kept."""
    path = recorded(tmp_path / "switch.rec", 1)
    lengths = [entry[4] for entry in entries(path)[1:] if isinstance(entry[4], int)]
    assert sum(lengths) > 10 * path.stat().st_size


def test_a_core_that_says_something_else_is_shown_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: one answer of the record is left out, as if the core had not given it then."""
    path = recorded(tmp_path / "switch.rec", 2)
    kept = entries(path)
    answered = [i for i, entry in enumerate(kept) if entry[0] == "received" and entry[5]]
    index = answered[20]
    kept[index][5] = kept[index][5][1:]
    path.write_bytes(b"".join(msgpack.packb(entry) for entry in kept))
    found = replay(path)
    assert found.difference is not None
    assert found.difference.startswith(f"entry {index + 1}: at ")
    assert main(["trace", "--replay", str(path)]) == 1
    assert found.difference in capsys.readouterr().out


def test_a_record_that_was_cut_short_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    """Goal: the record of a switch that was killed is of use."""
    path = recorded(tmp_path / "switch.rec", 3)
    whole = replay(path)
    path.write_bytes(path.read_bytes()[:-3])
    found = replay(path)
    assert (found.is_cut, found.difference) == (True, None)
    assert found.events_count == whole.events_count - 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no whole entry"),
        (b"hello", "is none of a switch's"),
        (msgpack.packb(["start", 9, 1, 1, 0, ["1"], {}, {}]), "has schema 9"),
        (msgpack.packb(["start", 1, 1, 1, 0, ["x"], {}, {}]), "a start cannot be read"),
        (msgpack.packb(["start", 1, 1, 1, 0, ["1"], {"slots": None}, {}, 0]), "at least one"),
        (msgpack.packb(["tick", 1, "", b"", None, []]), "does not begin with a start"),
        (msgpack.packb({"a": 1}), "is none of a switch's"),
    ],
)
def test_what_is_no_record_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "some.rec"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        replay(path)


def test_a_record_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "old.rec"
    path.write_bytes(b"")
    assert main(["compare", "--record", str(path)]) == ConfigError.exit_code
    assert "exists; name a new file" in capsys.readouterr().err
