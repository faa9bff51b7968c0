"""Does LuWu work on this machine's GPU, and what does a step take there? In under 8 minutes.

    make gpu-check                            JSON and page into benchmarks/results
    make gpu-check PYTHON=/path/to/python     with that interpreter, if its torch sees a GPU
    python -m benchmarks.gpu_check --smoke    the arms on the CPU: no GPU result

Runs:     the tests marked `gpu` and the documents' first scripts, then the arms of `gpu_arms.py`:
          LuWu with two workers on one GPU, FSDP2 over NCCL, the same with CPU offload, DDP, LuWu
          with one worker, plain torch.
Result:   one JSON and one page of the same numbers (`gpu_page.py`). What fails is named in both,
          and the rest goes on.
Code:     0 if all passed; 1 if a test or an arm failed, or losses differ; 2 without a GPU or
          without a package that is needed.

The interpreter is the first whose torch sees a GPU: that which runs this, `python3` and `python` on
the PATH, `.venv`. Nothing is installed and no network is needed. Until one is found, only the
standard library is imported here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from benchmarks.gpu_arms import Measured

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SECONDS_MAX = 450.0
"""When no arm is begun or goes on: 8 minutes without what surrounds them."""
TESTS_SECONDS_MAX = 180.0
DOCUMENTS = (
    "tests/house/test_docstring_examples.py",
    "tests/jobs/test_init_local.py",
    "tests/processes/test_readme.py::test_pages_blocks_run[README.md]",
)
"""Tests of what a reader copies first: the same code must run on a GPU."""
OLDEST, NEWEST = (3, 11), (3, 13)
PACKAGES = {
    "click": "click", "msgpack": "msgpack", "numpy": "numpy", "pytest": "pytest",
    "pytest_timeout": "pytest-timeout", "xxhash": "xxhash", "zmq": "pyzmq",
}  # fmt: skip
"""What is imported beside torch, and what the package index calls it."""
PROBE = """
import json, sys
found = {"version": list(sys.version_info[:2]), "torch": None, "gpus": 0}
try:
    import torch
    found["torch"] = str(torch.__version__)
    found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
except Exception as error:
    found["error"] = type(error).__name__
print(json.dumps(found))
"""


def main() -> int:
    """Check, write JSON and page; the exit code."""
    arguments = _parser().parse_args()
    if arguments.smoke:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        python, seen = find_interpreter(candidates())
        if python is None:
            return _refuse(
                f"no GPU found: {'; '.join(seen)}; start it on a machine with one, with a torch "
                "that has CUDA (PYTHON=/path/to/python names its interpreter)"
            )
        if python != sys.executable:
            _say(f"gpu-check: continues with {python}")
            paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            command = [python, "-m", "benchmarks.gpu_check", *sys.argv[1:]]
            sys.stderr.flush()
            os.execv(python, command)
    absent = missing_packages()
    if absent:
        return _refuse(
            f"{sys.executable} lacks {', '.join(absent)}; install there what is missing, such as "
            f"by `{sys.executable} -m pip install {' '.join(absent)}`, which leaves torch alone"
        )
    return _check(arguments)


def candidates() -> list[str]:
    """Interpreters to ask, the current one first; each once."""
    found = [sys.executable, shutil.which("python3"), shutil.which("python")]
    found.append(str(ROOT / ".venv" / "bin" / "python"))
    return list(dict.fromkeys(path for path in found if path and Path(path).exists()))


def find_interpreter(pythons: list[str]) -> tuple[str | None, list[str]]:
    """(the first whose torch sees a GPU, or None; what each one before has, in words)."""
    seen = []
    for python in pythons:
        try:
            done = subprocess.run(
                [python, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120
            )
            found = json.loads(done.stdout.splitlines()[-1])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            seen.append(f"{python} does not answer ({type(error).__name__})")
            continue
        version = ".".join(str(each) for each in found["version"])
        if not OLDEST <= tuple(found["version"]) <= NEWEST:
            seen.append(f"{python} is Python {version}, which is not 3.11 to 3.13")
        elif found["torch"] is None:
            seen.append(f"{python} has no torch ({found['error']})")
        elif not found["gpus"]:
            seen.append(f"the torch {found['torch']} of {python} sees none")
        else:
            return python, seen
    return None, seen


def missing_packages() -> list[str]:
    """The packages this interpreter lacks, by the names of the package index."""
    return [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]


def _check(arguments: argparse.Namespace) -> int:
    from benchmarks import gpu_arms
    from benchmarks.gpu_page import page_text
    from benchmarks.harness import write
    from luwu.base.clock import SYSTEM_CLOCK

    started_ns = SYSTEM_CLOCK.now_ns()
    gpus, job = _device_count(), gpu_arms.SMALL if arguments.smoke else gpu_arms.LARGE
    to_run, not_run = gpu_arms.cases(job, gpus)
    if arguments.cases:
        wanted = arguments.cases.split(",")
        unknown = [name for name in wanted if name not in to_run]
        if unknown:
            return _refuse(f"--cases: no {', '.join(unknown)} here; there are {', '.join(to_run)}")
        to_run = {name: to_run[name] for name in wanted}
    _say("tests")
    tests = gpu_tests(() if arguments.smoke else DOCUMENTS)
    with tempfile.TemporaryDirectory(prefix="luwu-gpu-") as folder:
        found = gpu_arms.measure(
            to_run, Path(folder), gpus=gpus, end_ns=started_ns + int(SECONDS_MAX * 1e9)
        )
    found.not_run.update(not_run)
    took_s = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
    document = document_of(tests, found, gpus=gpus, smoke=arguments.smoke, took_s=took_s)
    page = page_text(document)
    _say(f"\n{page}")
    for where, text in _places(arguments, document).items():
        if text is None:
            write(where, document)
        else:
            Path(where).write_text(page, encoding="utf-8")
        _say(f"wrote {where}")
    return exit_code(document)


def gpu_tests(documents: Sequence[str]) -> dict[str, Any]:
    """Run the tests marked `gpu`, and `documents`, with this interpreter: what came of them."""
    from luwu.base.clock import SYSTEM_CLOCK

    started_ns = SYSTEM_CLOCK.now_ns()
    with tempfile.TemporaryDirectory(prefix="luwu-gpu-") as folder:
        report = Path(folder) / "tests.xml"
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [
            sys.executable, "-m", "pytest", "-q", "--gpu", "-m", "not slow",
            "-p", "no:cacheprovider", "--junitxml", str(report), "tests/gpu", *documents,
        ]  # fmt: skip
        error = ""
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=TESTS_SECONDS_MAX, check=False,
            )  # fmt: skip
            if done.returncode not in (0, 1):
                error = f"pytest ended with code {done.returncode}: {done.stdout[-500:]}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {TESTS_SECONDS_MAX:.0f} s without an end"
        counted = (
            read_junit(report) if report.exists() else {"passed": 0, "skipped": 0, "failed": []}
        )
    return {**counted, "error": error, "seconds": (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9}


def read_junit(report: Path) -> dict[str, Any]:
    """Counts of a JUnit file of pytest, and a line for each test that failed."""
    passed = skipped = 0
    failed = []
    for case in ElementTree.parse(report).iter("testcase"):
        bad = [each for each in case if each.tag in ("failure", "error")]
        if bad:
            failed.append(f"{case.get('name')}: {(bad[0].get('message') or '')[:300]}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return {"passed": passed, "skipped": skipped, "failed": failed}


def document_of(
    tests: dict[str, Any], found: Measured, *, gpus: int, smoke: bool, took_s: float
) -> dict[str, Any]:
    """The result as it is written."""
    import torch

    from benchmarks import gpu_arms, harness

    claims = gpu_arms.claims(found.rows) if gpus else {}
    return harness.document(
        "gpu_check", found.rows, claims, smoke=smoke, is_gpu_result=gpus > 0,
        gpus=gpus, gpu=torch.cuda.get_device_name(0) if gpus else None, cuda=torch.version.cuda,
        has_compiler=shutil.which("cc") is not None, took_s=took_s, tests=tests,
        failed=found.failed, not_run=found.not_run,
        losses_that_differ=gpu_arms.losses_that_differ(found.rows),
    )  # fmt: skip


def exit_code(document: dict[str, Any]) -> int:
    """0 if all passed; on a GPU its tests must have run."""
    tests = document["tests"]
    is_bad = tests["failed"] or tests["error"] or document["failed"]
    is_bad = is_bad or document["losses_that_differ"] or not document["rows"]
    if document["is_gpu_result"]:
        is_bad = is_bad or tests["skipped"] or not tests["passed"]
    return 1 if is_bad else 0


def _places(arguments: argparse.Namespace, document: dict[str, Any]) -> dict[str, str | None]:
    """Files to write: None stands for JSON, text for the page."""
    json_file, page_file = arguments.json, arguments.page
    if document["is_gpu_result"] and json_file is page_file is None:
        gpu = re.sub(r"[^a-z0-9]+", "-", document["gpu"].lower().removeprefix("nvidia "))
        name = f"gpu_{gpu.strip('-')}_{document['environment']['date'][:10]}"
        json_file, page_file = str(RESULTS / f"{name}.json"), str(RESULTS / f"{name}.md")
    named = {json_file: None, page_file: "page"}
    return {where: text for where, text in named.items() if where is not None}


def _device_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_check", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--page", metavar="FILE.md", help="write the page there")
    parser.add_argument("--cases", metavar="A,B", help="these alone, such as 'luwu N=2,fsdp N=1'")
    parser.add_argument("--smoke", action="store_true", help="small arms on the CPU, over gloo")
    return parser


def _refuse(why: str) -> int:
    _say(f"gpu-check: {why}.")
    return 2


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
