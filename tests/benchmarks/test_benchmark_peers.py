"""`benchmarks.peers` without DeepSpeed: what is refused, derived and kept; and with it, a run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, peers, peers_libraries
from benchmarks.peers_libraries import INFINITY, OFFLOAD, check_deepspeed, libraries
from benchmarks.peers_zero import BUFFERS, zero_settings
from luwu.base.errors import ConfigError, LuwuError
from tests.benchmarks.test_benchmarks import run_smoke
from workers.gpt import GPTConfig

MODEL = GPTConfig(layers=8, width=512, heads=16, context=32)
MATRIX, BLOCK = 4 * 512 * 512, 12 * 512 * 512 + 13 * 512


def test_without_deepspeed_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: one sentence, before anything is started."""
    monkeypatch.setattr(peers_libraries, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"zero-infinity need .*pip install 'deepspeed>=0"):
        check_deepspeed(["luwu", INFINITY])
    check_deepspeed(["luwu"])


def test_what_was_compiled_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: it says so before it compiles; a compilation that was stopped goes on where it was,
    without the lock that it left; and one that was done is not made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peers_libraries, "_key", lambda: "key")
    compiled = tmp_path / "luwu" / "deepspeed" / "key" / "cpu_adam"
    starts: list[bool] = []

    def compile_(arm: str, *more: object) -> int:
        starts.append((compiled / "done.o").exists())
        assert not (compiled / "lock").exists()
        compiled.mkdir(exist_ok=True)
        for name in ("done.o", "lock"):
            (compiled / name).touch()
        if len(starts) == 1:
            raise KeyboardInterrupt
        (compiled.parent / f"{arm}.done").touch()
        return 0

    monkeypatch.setattr(peers_libraries, "_run_compiler", compile_)
    with pytest.raises(KeyboardInterrupt), libraries([INFINITY]):
        raise AssertionError("it cannot start")
    assert "compiling DeepSpeed's libraries, once" in capsys.readouterr().err
    for _ in range(2):
        with libraries([INFINITY]) as environ:
            assert environ["TORCH_EXTENSIONS_DIR"] == str(compiled.parent)
            with pytest.raises(ConfigError, match="another benchmark uses"), libraries([OFFLOAD]):
                raise AssertionError("one at a time")
    assert starts == [False, True]


def test_settings_follow_from_the_model() -> None:
    """Goal: buckets, live parameters and groups are of one block, buffers of one matrix; only
    ZeRO-Infinity names files."""
    settings = zero_settings(MODEL, world_size=2, batch=4, swap=Path("/d"))
    found = settings["zero_optimization"]
    for key in (
        "reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_max_live_parameters",
    ):  # fmt: skip
        assert found[key] == BLOCK, key
    assert found["sub_group_size"] == BLOCK // 2
    assert found["offload_param"]["buffer_size"] == MATRIX // 2
    for name in ("offload_param", "offload_optimizer"):
        assert found[name]["nvme_path"] == "/d"
        assert found[name]["buffer_count"] == BUFFERS

    in_ram = zero_settings(MODEL, world_size=2, batch=4, swap=None)
    assert in_ram["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert "aio" not in in_ram


def test_claims_are_ratios_to_luwu() -> None:
    """Goal: bytes per step without those of start and end; gloo's part; state out of the budget."""

    def row(arm: str, seconds: float, **more: Any) -> harness.Row:
        return harness.row("c", arm, [seconds], **more)

    document = {
        "disk_bytes_kernel": {"read": 1040.0, "written": 2120.0}, "node_state_bytes": 120,
    }  # fmt: skip
    ours = peers.disk_bytes(document, 10)
    assert ours == {"read": 100.0, "written": 200.0}
    theirs = peers.disk_bytes({**document, "node_state_bytes": None}, 10)
    assert theirs == {"read": 104.0, "written": 212.0}
    assert peers.disk_bytes({}, 10) is None
    rows = [
        row("luwu", 1.0, disk_bytes_per_step=ours, state_bytes=120, budget_bytes=40),
        row(INFINITY, 3.0, disk_bytes_per_step={"read": 400.0, "written": 200.0}),
        row("zero3-offload", 2.0), row("ddp", 0.5), row("exchange-only", 1.5),
    ]  # fmt: skip
    assert peers.claims(rows) == {
        "c: zero-infinity over luwu": 3.0, "c: zero3-offload over luwu": 2.0,
        "c: ddp over luwu": 0.5, "c: disk bytes over least": 1.5,
        "c: disk bytes of zero-infinity's": 0.5, "c: gloo's share": 0.5,
        "c: zero-infinity without gloo over luwu": 1.5,
    }  # fmt: skip
    assert {name.partition(": ")[2] for name in peers.claims(rows)} <= set(peers.MEANINGS)


@pytest.mark.parametrize("losses", [[5.0, 4.0, 3.1], [5.0, 4.0], [5.0, 4.0, float("nan")]])
def test_an_arm_that_trained_something_else_is_refused(losses: list[float]) -> None:
    peers.check_losses("ddp", [5.0, 4.0, 3.00001], [5.0, 4.0, 3.0])
    with pytest.raises(LuwuError, match="did not train the same"):
        peers.check_losses("ddp", losses, [5.0, 4.0, 3.0])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.timeout(3600)  # the first run compiles DeepSpeed's libraries
def test_peers_run(tmp_path: Path) -> None:
    """Goal: every arm is measured; losses are compared in the benchmark itself."""
    document = run_smoke(tmp_path, "peers")
    assert [row["arm"] for row in document["rows"]] == list(peers.ARMS)
    names = {name.partition(": ")[2] for name in document["claims"]}
    assert names == set(document["claims_meaning"])
