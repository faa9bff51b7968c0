"""`make gpu-check` where there is no GPU: how it ends, and how it makes its JSON and page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_arms, gpu_check, gpu_page

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 250.0
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")


def fake_python(directory: Path, name: str, **answer: Any) -> str:
    """An interpreter that answers the probe so."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    found = {"version": [3, 12], "torch": None, "gpus": 0, **answer}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    path.chmod(0o755)
    return str(path)


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


def test_missing_packages_are_named_and_nothing_is_installed() -> None:
    """Goal: a sentence with the names that pip knows. Method: an interpreter without its site."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu_check", "--smoke"],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    names = "click, msgpack, numpy, pytest, pytest-timeout, xxhash, pyzmq"
    [said] = done.stderr.splitlines()
    assert f" lacks {names}; " in said
    assert f"-m pip install {names.replace(',', '')}`" in said


IMPORTED = """
import importlib, sys, sysconfig
place, before = sysconfig.get_paths()["purelib"], set()
for names in sys.argv[1:]:
    for name in names.split():
        importlib.import_module(name)
    files = {name.partition(".")[0]: str(getattr(module, "__file__", None) or "")
             for name, module in list(sys.modules.items())}
    found = {name for name, file in files.items() if file.startswith(place)}
    new, before = found - before, found
print(*sorted(new))
"""


def test_the_packages_it_asks_for_are_all_it_imports() -> None:
    """Goal: what torch does not bring itself is looked for before, so a run does not end on it.
    Method: import what torch does, then all that the check and its processes do, and see what came
    from the site."""
    ours = (
        "benchmarks.gpu_check benchmarks.gpu_arms benchmarks.gpu_page workers.baselines "
        "benchmarks.gpu_worker luwu.base.own luwu.launch.agent luwu.launch.entry "
        "luwu.launch.processes.guard switch_emu.roles switch_emu.node.process "
        "switch_emu.switch.shell tests.conftest tests.gpu.test_training_gpu luwu.training "
        "luwu.transport pytest_timeout"
    )
    of_torch = "torch torch.profiler torch.distributed.fsdp pytest"
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, of_torch, ours], cwd=ROOT, capture_output=True, text=True,
        timeout=LIMIT_S, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert set(done.stdout.split()) <= {*gpu_check.PACKAGES}


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
