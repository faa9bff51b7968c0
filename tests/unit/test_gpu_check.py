"""`make gpu-check` where there is no GPU: how it ends, and how it makes its JSON and page."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_arms, gpu_check, gpu_page
from benchmarks.gpu_worker import CopyProfile, copies_behind_compute

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 250.0
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")


# ---------------------------------------------------------------------- before anything runs


def fake_python(directory: Path, name: str, **answer: Any) -> str:
    """An interpreter that answers the probe so."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    found = {"version": [3, 12], "torch": None, "gpus": 0, **answer}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_whose_torch_sees_a_gpu_is_taken(tmp_path: Path) -> None:
    """Goal: the first that can, and a reason for each before it."""
    pythons = [
        fake_python(tmp_path, "bare", error="ModuleNotFoundError"),
        fake_python(tmp_path, "old", version=[3, 9], torch="2.11.0+cu128", gpus=1),
        fake_python(tmp_path, "cpu", torch="2.11.0+cpu"),
        str(tmp_path / "gone"),
        fake_python(tmp_path, "gpu", torch="2.11.0+cu128", gpus=1),
        fake_python(tmp_path, "later", torch="2.11.0+cu128", gpus=8),
    ]
    found, seen = gpu_check.find_interpreter(pythons)
    assert found == pythons[4]
    assert [each.replace(str(tmp_path), "") for each in seen] == [
        "/bare has no torch (ModuleNotFoundError)",
        "/old is Python 3.9, which is not 3.11 to 3.13",
        "the torch 2.11.0+cpu of /cpu sees none",
        "/gone does not answer (FileNotFoundError)",
    ]
    assert gpu_check.find_interpreter(pythons[:4]) == (None, seen)


@NO_GPU
def test_without_a_gpu_it_ends_with_one_sentence_and_code_2(tmp_path: Path) -> None:
    """Goal: no set-up, no traceback, nothing made. Method: the make target, with this interpreter;
    the PATH has make and shell, and an interpreter without torch."""
    fake_python(tmp_path / "path", "python3", error="ModuleNotFoundError")
    path = os.pathsep.join([str(tmp_path / "path"), "/usr/bin", "/bin"])
    of_make_test = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")  # with them make says where it is
    environ = {name: value for name, value in os.environ.items() if name not in of_make_test}
    done = subprocess.run(
        ["make", "gpu-check", f"PYTHON={sys.executable}", "ARGS=--json never.json"],
        cwd=ROOT, env={**environ, "PATH": path}, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    said, *of_make = done.stderr.splitlines()
    assert said.startswith(f"gpu-check: no GPU found: the torch {torch.__version__} of ")
    assert "python3 has no torch" in said
    assert said.count(". ") == 0
    assert said.endswith(".")
    assert all(line.startswith("make") for line in of_make), of_make
    assert not (ROOT / "never.json").exists()


@NO_GPU
def test_it_goes_on_with_the_interpreter_that_has_cuda(tmp_path: Path) -> None:
    """Goal: the same command, by `python3` of the PATH, where this torch sees no GPU. Method: a
    `python3` that answers as one with a GPU, and prints what it is then started with."""
    answer = json.dumps({"version": [3, 12], "torch": "2.11.0+cu128", "gpus": 1})
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n[ $1 = -c ] && echo '{answer}' || echo $PYTHONPATH: $@\n")
    python.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), "/usr/bin", "/bin"])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--json", "here.json"], cwd=ROOT,
        env={**os.environ, "PATH": path, "PYTHONPATH": ""}, capture_output=True, text=True,
        timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout == f"{ROOT}: -m benchmarks.gpu_check --json here.json\n"
    assert done.stderr == f"gpu-check: continues with {python}\n"


def test_missing_packages_are_named_and_nothing_is_installed() -> None:
    """Goal: a sentence with the names that pip knows. Method: an interpreter without its site."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu_check", "--smoke"],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    names = "msgpack, numpy, pytest, pytest-timeout, simpy, xxhash, pyzmq"
    [said] = done.stderr.splitlines()
    assert f" lacks {names}; " in said
    assert f"-m pip install {names.replace(',', '')}`" in said


IMPORTED = """
import importlib, sys, sysconfig
for name in sys.argv[1:]:
    importlib.import_module(name)
place = sysconfig.get_paths()["purelib"]
files = {name.partition(".")[0]: str(getattr(module, "__file__", None) or "")
         for name, module in list(sys.modules.items())}
print(*sorted(name for name, file in files.items() if file.startswith(place)))
"""


def test_the_packages_it_asks_for_are_all_it_imports() -> None:
    """Goal: what torch does not bring itself is looked for before, so a run does not end on it.
    Method: import all that the check and its processes do, and see what came from the site."""
    ours = (
        "benchmarks.gpu_check", "benchmarks.gpu_arms", "benchmarks.gpu_page", "workers.baselines",
        "benchmarks.gpu_worker", "luwu.base.own", "luwu.launch.agent", "luwu.launch.entry",
        "luwu.launch.processes.guard", "switch_emu.roles", "switch_emu.node.process",
        "switch_emu.switch.shell", "tests.conftest", "tests.gpu.test_training_gpu", "luwu.training",
        "luwu.transport", "pytest_timeout",
    )  # fmt: skip

    def imported(*names: str) -> set[str]:
        command = [sys.executable, "-c", IMPORTED, *names]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return set(done.stdout.split())

    of_torch = imported("torch", "torch.profiler", "torch.distributed.fsdp", "pytest")
    assert imported(*ours) - of_torch <= {*gpu_check.PACKAGES}


# ---------------------------------------------------------------------- what runs, and its rows


def test_rows_that_cannot_run_are_named() -> None:
    """Goal: NCCL's rows need a GPU for each rank; LuWu's workers share one, and the row says so."""
    found, left_out = gpu_arms.cases(gpu_arms.LARGE, gpus=1)
    assert list(found) == [
        "luwu N=2", "fsdp N=1", "fsdp_offload N=1", "ddp N=1", "luwu N=1", "single N=1",
    ]  # fmt: skip
    assert {job.workers * job.batch for _, job in found.values()} == {gpu_arms.LARGE.batch}
    assert list(left_out) == ["fsdp N=2", "fsdp_offload N=2", "ddp N=2"]
    assert left_out["fsdp N=2"].startswith("2 GPUs needed, 1 here")
    assert gpu_arms.sharing(2, 1) == "2 workers on 1 GPU"
    assert gpu_arms.sharing(1, 1) == gpu_arms.sharing(2, 0) == ""
    assert not gpu_arms.cases(gpu_arms.LARGE, gpus=4)[1]


def activity(category: str, name: str, start_us: float, us: float, stream: int) -> dict[str, Any]:
    arguments = {"stream": stream, "bytes": 1000, "device": 0}
    return {"ph": "X", "cat": category, "name": name, "ts": start_us, "dur": us, "args": arguments}


def test_copies_behind_compute_are_those_that_kernels_cover() -> None:
    """Goal: of 40 us of copies, 15 lie behind kernels of the compute stream. Other kernels, such as
    those that pack gradients, hide nothing; nor do copies within the device count."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9},
        activity("kernel", "gemm", 100, 30, stream=7),
        activity("kernel", "gemm", 150, 10.5, stream=7),
        activity("kernel", "pack", 180, 40, stream=20),
        activity("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 120, 20, stream=13),
        activity("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 155.5, 20, stream=20),
        activity("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 0, 500, stream=7),
    ]
    assert copies_behind_compute(events) == {
        "seconds_a_step": pytest.approx(20e-6), "bytes_a_step": 1000,
        "compute_seconds_a_step": pytest.approx(20.25e-6), "behind_compute_ratio": 15 / 40,
    }  # fmt: skip
    assert copies_behind_compute(events[:4]) is None
    assert copies_behind_compute(events[4:5])["behind_compute_ratio"] == 0  # type: ignore[index]
    first, second = ({"seconds_a_step": s, "bytes_a_step": 5, "behind_compute_ratio": r}
                     for s, r in ((1.0, 1.0), (3.0, 0.0)))  # fmt: skip
    both = gpu_arms.copies_of([first, None, second])
    assert both is not None
    assert (both["seconds_a_step"], both["bytes_a_step"]) == (4.0, 10)
    assert both["behind_compute_ratio"] == 0.25
    assert gpu_arms.copies_of([None]) is None


class CountingArm:
    """As much of an arm as a profile looks at."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, *, want_norm: bool) -> float:
        self.steps += 1
        return float((torch.ones(8, 8) @ torch.ones(8, 8)).sum())

    def measurements(self) -> dict[str, Any]:
        return {"own": self.steps}


@NO_GPU
def test_a_worker_is_profiled_in_its_last_steps(tmp_path: Path) -> None:
    """Goal: the trace is read once, and leaves no file; a CPU has no copies, so none are shown."""
    arm: Any = CountingArm()
    CopyProfile(arm, 6, tmp_path / "rank0.trace")
    for number in range(6):
        assert arm.measurements()["copies_missing"] == "the profiler recorded nothing", number
        assert arm.step(want_norm=False) == 512.0
    assert arm.measurements() == {
        "own": 6, "copies": None, "copies_missing": "the profiler recorded no copies",
        "steps_not_timed": 4,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- JSON and page


def row(arm: str, losses: list[float], **changes: Any) -> dict[str, Any]:
    return {"case": f"{arm} N=1", "arm": arm, "workers": 1, "loss": losses, **changes}


def test_a_wrong_answer_is_no_result() -> None:
    good, bad = [5.5, 5.0], [5.5, 5.4]
    assert gpu_arms.losses_that_differ([row("luwu", good), row("fsdp", good)]) == []
    [said] = gpu_arms.losses_that_differ([row("luwu", bad), row("fsdp", good), row("ddp", good)])
    assert said.startswith("luwu N=1 and fsdp N=1 trained the same samples, but their losses are")
    assert gpu_arms.losses_that_differ([row("luwu", bad)]) == []  # there is nothing to compare with


def document(**changes: Any) -> dict[str, Any]:
    tests = {"passed": 12, "skipped": 0, "failed": [], "error": "", "seconds": 3.0}
    place = {"commit": "abc", "date": "2026-01-02", "python": "3.12", "torch": "2.11",
             "cpu": "a CPU", "cores": 16}  # fmt: skip
    known = {"case": "fsdp N=1", "parameters": 1000, "dtype": "bfloat16", "tokens_per_step": 64,
             "tokens_per_s": 1000.0, "seconds_median": 0.064, "seconds_spread": 0.1,
             "device": "NVIDIA X", "device_bytes_max": 2**30, "device_bytes_all_workers": 2**31,
             "worker_host_bytes_max": 2**20, "node_host_bytes": None, "sharing": "",
             "copies": {"bytes_a_step": 2**20, "seconds_a_step": 0.01, "behind_compute_ratio": 0.5},
             "copies_missing": None}  # fmt: skip
    return {
        "smoke": False, "is_gpu_result": True, "gpus": 1, "gpu": "NVIDIA X 80GB", "cuda": "12.8",
        "has_compiler": True, "took_s": 300.0, "environment": place, "tests": tests,
        "rows": [known], "claims": {"speed_over_fsdp_n2": 0.5}, "failed": {}, "not_run": {},
        "losses_that_differ": [], **changes,
    }  # fmt: skip


def test_results_of_a_gpu_are_kept_and_those_of_a_cpu_are_not() -> None:
    """Goal: without names, only a GPU's files go beside the results of other benchmarks."""
    plain = argparse.Namespace(json=None, page=None)
    names = gpu_check._places(plain, document(gpu="NVIDIA H100 80GB HBM3"))
    start = str(ROOT / "benchmarks" / "results" / "gpu_h100-80gb-hbm3_2026-01-02")
    assert list(names.items()) == [(f"{start}.json", None), (f"{start}.md", "page")]
    assert gpu_check._places(plain, document(is_gpu_result=False)) == {}
    named = argparse.Namespace(json="a.json", page=None)
    assert gpu_check._places(named, document()) == {"a.json": None}


def test_the_page_gives_the_verdict_first() -> None:
    text = gpu_page.page_text(document())
    assert text.index("## Verdict") < text.index("| fsdp N=1 |")
    assert "- GPU tests: 12 passed, 0 failed, 0 skipped, in 3 s.\n" in text
    cells = "1,000 | 64.0 ms | 10% | 1.00 GiB | 2.00 GiB | 1.00 MiB | - | 1.00 MiB, 10.0 ms | 50%"
    assert f"| fsdp N=1 | {cells} |  |" in text
    assert "no GPU result" not in text
    assert gpu_check.exit_code(document()) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tests": {"passed": 1, "skipped": 0, "failed": ["test_a: no|bits"], "error": "",
                    "seconds": 1.0}}, "- Failed test: test_a: no/bits\n"),
        ({"tests": {"passed": 0, "skipped": 12, "failed": [], "error": "", "seconds": 1.0}},
         "0 passed, 0 failed, 12 skipped"),
        ({"tests": {"passed": 0, "skipped": 0, "failed": [], "error": "stopped after 120 s",
                    "seconds": 120.0}}, "; stopped after 120 s.\n"),
        ({"failed": {"ddp N=1": "worker 0 failed\nTraceback\nRuntimeError: NCCL"}},
         "- Failed: ddp N=1: worker 0 failed ... RuntimeError: NCCL\n"),
        ({"losses_that_differ": ["luwu N=1 and fsdp N=1 differ"]}, "- Wrong: luwu N=1 and fsdp"),
        ({"rows": []}, "- Arms: 0 ran, 0 failed.\n"),
    ],
    ids=["test", "skipped", "timeout", "arm", "losses", "nothing"],
)  # fmt: skip
def test_what_failed_is_on_the_page_and_in_the_code(changes: dict[str, Any], said: str) -> None:
    assert said in gpu_page.page_text(document(**changes))
    assert gpu_check.exit_code(document(**changes)) == 1


def test_tests_are_counted_as_pytest_reports_them(tmp_path: Path) -> None:
    """Goal: each outcome, errors of fixtures too. Method: pytest itself, on a file of its own."""
    (tmp_path / "test_outcomes.py").write_text(
        "import pytest\n"
        "@pytest.fixture\ndef broken(): raise OSError('no device')\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 1 == 2\n"
        "def test_error(broken): pass\n"
        "@pytest.mark.skip(reason='why')\ndef test_left_out(): pass\n"
    )
    report = tmp_path / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), "-p",
         "no:cacheprovider", "--junitxml", str(report), "test_outcomes.py"],
        cwd=tmp_path, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    found = gpu_check.read_junit(report)
    assert (found["passed"], found["skipped"]) == (1, 1)
    bad, broken = found["failed"]
    assert bad == "test_bad: assert 1 == 2"
    assert broken.startswith("test_error: ")
    assert "no device" in broken


@pytest.mark.parametrize(
    "cases", ["luwu N=1,fsdp N=1", pytest.param("", marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_the_smoke_makes_json_and_page_of_arms_on_the_cpu(cases: str, tmp_path: Path) -> None:
    """Goal: from arms to JSON and page, marked as no GPU result; the tests for GPUs are skipped."""
    flags = ["--cases", cases] if cases else []
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--smoke", *flags, "--json",
         str(tmp_path / "found.json"), "--page", str(tmp_path / "found.md")],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    page = (tmp_path / "found.md").read_text()
    assert page == gpu_page.page_text(found)
    assert gpu_page.SMOKE in page
    assert (found["is_gpu_result"], found["gpus"], found["gpu"]) == (False, 0, None)
    assert found["claims"] == found["failed"] == {}
    assert found["tests"]["passed"] == 0 < found["tests"]["skipped"]
    ran = [row["case"] for row in found["rows"]]
    assert ran == (cases.split(",") if cases else list(gpu_arms.cases(gpu_arms.SMALL, 0)[0]))
    for each in found["rows"]:
        assert (each["device"], each["device_bytes_max"], each["copies"]) == ("cpu", None, None)
        assert each["copies_missing"] == "the profiler recorded no copies"
        assert each["tokens_per_step"] == 32
        assert each["measured_count"] == 2


def test_an_arm_that_fails_is_named_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one fault costs one row; after the end no arm begins. Method: arms whose run raises."""
    made = []

    def run(self: Any, arm: str, job: Any, flags: Any) -> Any:
        made.append(arm)
        raise {"luwu": RuntimeError("a kernel"), "ddp": gpu_arms.LuwuError("refused")}[arm]

    monkeypatch.setattr(gpu_arms.TrainingRuns, "run", run)
    wanted = {name: (name, gpu_arms.SMALL) for name in ("luwu", "ddp")}
    found = gpu_arms.measure(wanted, tmp_path, gpus=1, end_ns=2**62)
    assert made == ["luwu", "ddp"]
    assert found.failed["luwu"].rstrip().endswith("RuntimeError: a kernel")
    assert found.failed["ddp"] == "refused"
    late = gpu_arms.measure(wanted, tmp_path, gpus=1, end_ns=0)
    assert late.not_run == {"luwu": "no time was left", "ddp": "no time was left"}
    assert made == ["luwu", "ddp"]
