"""`make setup`: the pins suit the torch that was chosen, and every version we name resolves.

Tests marked `index` ask a package index; `make campaign` runs them, `make test` does not.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMING = ["docs/first-run.md", "Makefile", ".ci/setup.py", "pyproject.toml"]
"""Files that name versions of torch."""


def load(name: str) -> ModuleType:
    """A module of .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pins = load("pins")


def torch_versions() -> list[str]:
    """Every torch that the files name, and the oldest that the project takes."""
    found = {
        version
        for name in NAMING
        for version in re.findall(r"torch(?:==|>=)(\d+[.\d]*\d)", (ROOT / name).read_text())
    }
    found.update(re.findall(r"^torch==(.*)$", CONSTRAINTS, re.MULTILINE))
    return sorted(version if version.count(".") > 1 else f"{version}.0" for version in found)


def pythons() -> list[str]:
    """Versions of Python that the project's classifiers name."""
    prefix = "Programming Language :: Python :: "
    return [text.removeprefix(prefix) for text in PROJECT["classifiers"] if prefix in text]


def requirements(extra: str) -> list[str]:
    """What an extra of the project requires, without the project itself."""
    found = []
    for text in PROJECT["optional-dependencies"][extra]:
        own = re.fullmatch(rf"{PROJECT['name']}\[(.*)\]", text)
        found += [text] if own is None else [
            each for name in own[1].split(",") for each in requirements(name)
        ]  # fmt: skip
    return found


def test_a_pin_that_torch_refuses_is_left_out() -> None:
    """Goal: torch 2.11 and 2.12 want setuptools<82, and constraints pin another; all other pins
    stay, and requirements of extras and of other platforms refuse nothing."""
    wants = [
        "setuptools<82", "sympy>=1.13.3", 'networkx<1; extra == "some"',
        'jinja2<1; platform_system == "Plan9"',
    ]  # fmt: skip
    text, left_out = pins.suited(CONSTRAINTS, "2.11.0+cpu", wants)
    before, after = CONSTRAINTS.splitlines(), text.splitlines()
    changed = {line for line in before if line not in after}
    assert {line.partition("==")[0] for line in changed} == {"setuptools", "torch"}
    assert "torch==2.11.0+cpu" in after
    (told,) = left_out
    assert re.fullmatch(r"setuptools==\S+ \(torch 2\.11\.0\+cpu wants setuptools<82\)", told)


def test_pins_of_the_pinned_torch_are_kept() -> None:
    """Goal: pip gets the pins of the file, except torch's and those reported as left out."""
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "pins.py"), str(ROOT / "constraints.txt")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    changed = ("torch==", *re.findall(r"without the pin (\S+)", done.stderr))
    same = [line for line in CONSTRAINTS.splitlines() if not line.startswith(changed)]
    assert [line for line in done.stdout.splitlines() if not line.startswith("torch==")] == same


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask pip; no constraints but those that are given."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.index
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("torch", torch_versions())
def test_versions_we_name_resolve(torch: str, python: str, tmp_path: Path) -> None:
    """Goal: `make setup` has something to install for each torch and each Python that we name.
    Method: pip resolves what the set-up would install, for that Python, and downloads nothing."""
    target = ["--only-binary=:all:", "--python-version", python, "--target", str(tmp_path / "no")]
    report = tmp_path / "report.json"
    asked = pip(*target, "--no-deps", "--report", str(report), f"torch=={torch}")
    assert asked.returncode == 0, asked.stderr
    metadata = json.loads(report.read_text())["install"][0]["metadata"]
    text, _ = pins.suited(CONSTRAINTS, metadata["version"], metadata["requires_dist"])
    file = tmp_path / "constraints.txt"
    file.write_text(text)
    wanted = {*PROJECT["dependencies"], *requirements("dev")}
    done = pip(*target, "-c", str(file), *sorted(wanted))
    assert done.returncode == 0, done.stderr
