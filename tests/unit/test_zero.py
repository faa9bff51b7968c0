"""DeepSpeed's arms without DeepSpeed: what is refused, derived, kept and removed."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import harness, peers
from luwu.base.config import INFINITY, ZERO_ARMS, RunConfig, resolve
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.own import needs
from luwu.commands.compare import VERB, run
from luwu.commands.flags import parse
from luwu.compare import zero
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from workers import zero_ops
from workers.gpt import GPTConfig
from workers.zero import BUFFERS, zero_settings

MODEL = GPTConfig(layers=8, width=512, heads=16, context=32)
MATRIX, BLOCK = 4 * 512 * 512, 12 * 512 * 512 + 13 * 512


@pytest.mark.feature("DeepSpeed's ZeRO-3 offload and ZeRO-Infinity beside luwu")
@pytest.mark.parametrize("arm", ZERO_ARMS)
def test_without_deepspeed_the_command_that_installs_it_is_named(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one sentence, before anything is started or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError) as caught:
        run(parse(VERB, ["--arms", f"luwu,{arm}"]))
    assert caught.value.code == "E208"
    assert str(caught.value) == (
        f"arms: {arm} needs the package deepspeed; {needs('peers')}, or leave the arm out"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dtype", "bfloat16"], "trains in float32 only, not in bfloat16"),
        (["--compute-ms", "5"], "cannot have --compute-ms"),
        (["--reshard-after-forward", "false"], "cannot have --reshard-after-forward false"),
    ],
)
def test_another_job_than_that_of_the_other_arms_is_refused_before_it_starts(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "deepspeed", _module("deepspeed"))
    with pytest.raises(ConfigError, match=message):
        run(parse(VERB, ["--arms", "luwu,zero-infinity", *flags]))
    assert list(tmp_path.iterdir()) == []


def test_settings_follow_from_the_model() -> None:
    """Goal: buckets, live parameters and groups are of one block, buffers of one matrix; only
    ZeRO-Infinity names files."""
    settings = zero_settings(MODEL, world_size=2, batch=4, swap=Path("/d"), max_grad_norm=None)
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
    assert settings["gradient_clipping"] == 0.0

    in_ram = zero_settings(MODEL, world_size=2, batch=4, swap=None, max_grad_norm=0.5)
    assert in_ram["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert in_ram["gradient_clipping"] == 0.5
    assert "aio" not in in_ram


class TestLibraries:
    """What is compiled is kept; what a run leaves in its copy is not."""

    @pytest.fixture
    def environ(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """`zero_environ` of a run of that name, with a compiler that writes a file."""
        self.compiled: list[str] = []

        def compile_(arm: str, environ: dict[str, str], *rest: object) -> None:
            self.compiled.append(arm)
            library = Path(environ["TORCH_EXTENSIONS_DIR"], "cpu_adam", "cpu_adam.so")
            library.parent.mkdir(parents=True)
            if arm == INFINITY and self.is_broken:
                raise ConfigError("no libaio")
            library.write_text(arm)

        self.is_broken = False
        monkeypatch.setattr(zero, "_compile", compile_)
        monkeypatch.setattr(zero, "_key", lambda arm, path: "key")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

        def of(name: str, arm: str, arms: str = "") -> Any:
            config = resolve(flags={"arms": arms or arm}, environ={}).config
            made = RunDirectory.create(tmp_path / name)
            return zero.zero_environ(arm, config, made, Console(sys.stderr), lambda: False)

        return of

    def test_a_lock_that_is_left_in_one_run_is_not_in_the_next(
        self, environ: Callable[..., Any], tmp_path: Path
    ) -> None:
        for name in ("first", "second"):
            with environ(name, ZERO_ARMS[0]) as found:
                libraries = Path(found["TORCH_EXTENSIONS_DIR"])
                assert [each.name for each in libraries.rglob("*.*")] == ["cpu_adam.so"]
                assert libraries.parent == tmp_path / name
                (libraries / "cpu_adam" / "lock").touch()
            assert not libraries.exists()
        assert self.compiled == [ZERO_ARMS[0]]

    def test_both_arms_compile_once(self, environ: Callable[..., Any], tmp_path: Path) -> None:
        for name, arm in zip("ab", ZERO_ARMS, strict=True):
            with environ(name, arm, arms=",".join(ZERO_ARMS)):
                assert (tmp_path / name / INFINITY).is_dir() == (arm == INFINITY)
            assert not (tmp_path / name / INFINITY).exists()
        assert self.compiled == [INFINITY]

    def test_what_does_not_compile_is_not_kept(
        self, environ: Callable[..., Any], tmp_path: Path
    ) -> None:
        self.is_broken = True
        with pytest.raises(ConfigError, match="no libaio"), environ("broken", INFINITY):
            raise AssertionError("it cannot start")
        assert list((tmp_path / "cache" / "luwu" / "deepspeed").iterdir()) == []
        assert not (tmp_path / "broken" / "deepspeed").exists()


def test_libraries_of_a_cpu_are_not_those_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: of two runs on one machine, one with its GPU hidden, each compiles its own."""
    monkeypatch.setattr(zero.metadata, "version", lambda name: "1")
    monkeypatch.setattr(zero.shutil, "which", lambda program, path: sys.executable)
    keys = set()
    for has_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        keys.add(zero._key(INFINITY, ""))
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("named", "given"), [("9.0a", "9.0"), ("8.6;9.0a+PTX 10.0f", "8.6;9.0+PTX 10.0"), (None, None)]
)
def test_generations_of_gpus_reach_deepspeed_as_numbers(
    named: str | None, given: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSpeed 0.19 ends with a ValueError at 9.0a."""
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    if named is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", named)
    environ = zero._environ(RunDirectory.create(tmp_path / "run"))
    assert environ.get("TORCH_CUDA_ARCH_LIST") == given


def test_files_of_zero_infinity_lie_on_the_disk_of_the_state(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "run")
    assert zero.swap_directory(RunConfig(), made) == made.path / INFINITY
    elsewhere = zero.swap_directory(RunConfig(state=tmp_path / "disk" / "state"), made)
    assert elsewhere.parent == tmp_path / "disk"
    assert elsewhere.name not in ("state", INFINITY)


def test_a_library_that_cannot_be_compiled_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: libaio's headers by name; else the compiler's first complaint.
    Method: builders of DeepSpeed's shape."""

    class Builder:
        def __init__(self, name: str) -> None:
            self.name = name

        def is_compatible(self, verbose: bool) -> bool:
            return False

        def load(self, verbose: bool) -> None:
            if self.name == "PinMemoryBuilder" and fails:
                raise RuntimeError("Error building extension\nx.cpp:1: error: no Python.h\nmore")

    accelerator = types.SimpleNamespace(device_name=lambda: "cpu", create_op_builder=Builder)
    monkeypatch.setenv("DS_ACCELERATOR", "set, and so restored")
    monkeypatch.setitem(sys.modules, "deepspeed", _module("deepspeed"))
    there = _module("deepspeed.accelerator", get_accelerator=lambda: accelerator)
    monkeypatch.setitem(sys.modules, "deepspeed.accelerator", there)
    fails = False
    zero_ops.build(ZERO_ARMS[0])
    with pytest.raises(ConfigError, match="libaio-dev on Debian"):
        zero_ops.build(INFINITY)
    fails = True
    with pytest.raises(ConfigError, match=r"PinMemoryBuilder .*error: no Python.h"):
        zero_ops.build(ZERO_ARMS[0])


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


def _module(name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]
    made.__dict__.update(content)
    return made
