"""Whether the project can be released: `make release-check`, or `python -m tests.release`.

    python -m tests.release --only 3.12    that Python alone; else all that the classifiers name

Builds sdist and wheel and checks their metadata, the latter with twine too. Then, for each Python,
in an empty environment and outside of the checkout: pip installs the wheel with all it requires,
torch as --torch has it; `luwu --version`, the demo and the README's script on two workers run; the
sdist, in the wheel's place, installs the same files. Licences and bytes are those of what is then
installed. One row for each check; exit code 1 if one fails, or a Python is not here: `python3.N` is
looked for on the path, and in pyenv.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from luwu.base.own import DISTRIBUTION
from tests.api import PROJECT, ROOT
from tests.helpers.command_line import demo

BYTES_MAX: Final = 20_000_000
"""Of an install without torch, what torch requires, and numpy, which takes three times as much."""
HOSTS: Final = {"arxiv.org"}
"""Where links of the metadata may lead: the project itself has no address yet."""
LICENCES: Final = {
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "MIT",
    "PSF-2.0", "Zlib",
    "Apache Software License", "BSD License", "MIT License",
}  # fmt: skip
"""What is installed has no others. The last line are names of classifiers."""
COMMAND_S: Final = 1200
PYTHON: Final = "Programming Language :: Python :: "


class Failed(Exception):
    """A check that failed, and why."""


def build(source: Path, target: Path, kind: str) -> Path:
    """A wheel or an sdist of a source tree."""
    _run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)], source)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def metadata_in(wheel: Path) -> Message:
    """What an index shows of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_string(archive.read(name).decode())


def metadata_problems(found: Message) -> list[str]:
    """What is wrong with it."""
    from trove_classifiers import classifiers

    named = found.get_all("Classifier") or []
    minors = [f"3.{minor}" for minor in range(30)]
    takes = SpecifierSet(found["Requires-Python"] or "")
    links = re.findall(r"\bhttps?://([^/\s)]+)", str(found))
    holds = {
        "name": found["Name"] == DISTRIBUTION,
        "version": re.fullmatch(r"\d+\.\d+\.\d+", found["Version"]) is not None,
        "requires-python and classifiers": [each for each in minors if takes.contains(f"{each}.9")]
        == [each.removeprefix(PYTHON) for each in named if each.startswith(PYTHON)],
        "classifiers": set(named) <= classifiers,
        "licence": found["License-Expression"] == "Apache-2.0"
        and found.get_all("License-File") == ["LICENSE"],
        "links": set(links) <= HOSTS and "Project-URL" not in found,
        "summary": 0 < len(found["Summary"]) <= 100,
    }
    return [what for what, is_right in holds.items() if not is_right]


def of_metadata(place: Path, made: Sequence[Path]) -> Iterator[str]:
    """What an index would show. Raises Failed."""
    if wrong := metadata_problems(metadata_in(made[0])):
        raise Failed(", ".join(wrong))
    yield ", ".join(path.name for path in made)
    _run([sys.executable, "-m", "venv", "venv"], place)
    own = str(place / "venv" / "bin" / "python")
    _run([own, "-m", "pip", "install", "--quiet", "twine", "readme-renderer[md]"], place)
    _run([own, "-m", "twine", "check", "--strict", *map(str, made)], place)
    yield "twine check"


def script() -> str:
    """The README's script, as it is after the change."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if not line.startswith("-"))


def interpreter(version: str) -> str:
    """The Python of a version. Raises Failed if there is none."""
    command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        return _run(command, ROOT, PYENV_VERSION=version).strip()
    except (OSError, Failed) as error:
        raise Failed(f"no Python {version} on the path, nor in pyenv") from error


def checks(python: str, place: Path, torch: str, made: Sequence[Path]) -> Iterator[str]:
    """Each check of a Python, and what it found. Raises Failed."""
    (work := place / "work").mkdir()
    (work / "train.py").write_text(script())
    _run([python, "-m", "venv", "venv"], place)
    own, luwu = (str(place / "venv" / "bin" / name) for name in ("python", "luwu"))
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    install = [own, "-m", "pip", "install", "--quiet"]
    train = [luwu, "run", "--workers", "2", "--state"]
    wheel, sdist = made

    _run([*install, torch, str(wheel)], work)
    yield "wheel installed"
    version = rf"^luwu {re.escape(PROJECT['version'])}, python [\d.]+"
    yield _find(version, [luwu, "--version"], work)
    same = r"end with the same weights, bit for bit"
    yield "demo: " + _find(same, [luwu, *demo()], work)
    yield "two workers: " + _find(r"step 59 loss \S+", [*train, "first", "train.py"], work)
    yield from _contents(site)

    files = _files(site)
    _run([*install, "--force-reinstall", "--no-deps", str(sdist)], work)
    if different := files ^ _files(site):
        raise Failed(f"sdist and wheel install different files: {sorted(different)}")
    yield "sdist installed: the same files"
    yield "two workers: " + _find(r"step 59 loss \S+", [*train, "second", "train.py"], work)


def _contents(site: Path) -> Iterator[str]:
    """Licences and bytes of what is installed. Raises Failed."""
    found = {
        canonicalize_name(each.name): each for each in metadata.distributions(path=[str(site)])
    }
    del found["pip"]
    nvidia = {name for name in found if name.startswith(("nvidia-", "cuda-"))}
    named = {name: _licences(each) for name, each in found.items() if name not in nvidia}
    if wrong := {name: each for name, each in named.items() if not each <= LICENCES}:
        raise Failed(f"licences that are not in the list: {wrong}")
    yield f"licences of {len(named)} packages; {len(nvidia)} of NVIDIA, which torch brings"

    others, waiting = {"numpy"}, {"torch"}
    while waiting:
        others.add(name := waiting.pop())
        needed = {canonicalize_name(Requirement(text).name) for text in found[name].requires or []}
        waiting |= (needed & found.keys()) - others
    sizes = {
        name: sum(file.locate().stat().st_size for file in each.files or [])
        for name, each in found.items()
    }
    nbytes = sum(size for name, size in sizes.items() if name not in others)
    yield f"{nbytes / 1e6:.1f} MB without torch and numpy ({sizes['numpy'] / 1e6:.1f} MB)"
    if nbytes > BYTES_MAX:
        raise Failed(f"more than {BYTES_MAX / 1e6:.0f} MB")


def _licences(package: metadata.Distribution) -> set[str]:
    """The names of all its licences; one that is empty if it names none."""
    told = package.metadata
    named = [each for each in told.get_all("Classifier") or [] if each.startswith("License :: ")]
    text = told["License-Expression"] or told["License"] or " AND ".join(named)
    parts = text.replace(" WITH LLVM-exception", "").split(" AND ")
    return {each.rpartition(" :: ")[2] for each in parts}


def _files(site: Path) -> set[str]:
    """Our own files of an installation, but for its records."""
    files = metadata.Distribution.at(next(site.glob("luwu_emulator-*.dist-info"))).files or []
    return {
        str(file) for file in files if ".pyc" not in file.name and file.name != "direct_url.json"
    }


def _find(pattern: str, command: Sequence[str], where: Path) -> str:
    """What a command prints that is looked for. Raises Failed."""
    printed = _run(command, where)
    found = re.search(pattern, printed, re.MULTILINE)
    if found is None:
        raise Failed(f"{' '.join(command)} printed no {pattern!r}:\n{printed[-2000:]}")
    return found[0]


def _run(command: Sequence[str], where: Path, **environ: str) -> str:
    """The output of a command, in an environment without ours. Raises Failed."""
    ours = ("LUWU_", "PYTHON", "VIRTUAL_ENV")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        command, cwd=where, env={**clean, **environ}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=COMMAND_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    """Check all; the exit code."""
    pythons = [each.removeprefix(PYTHON) for each in PROJECT["classifiers"] if PYTHON in each]
    pinned = re.search(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("--only", choices=pythons, action="append", help="this Python alone")
    parser.add_argument("--torch", default=pinned[0], help=f"what pip installs ({pinned[0]})")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="luwu-release-") as temporary:
        made = [build(ROOT, Path(temporary), kind) for kind in ("wheel", "sdist")]
        for name in ("metadata", *(given.only or pythons)):
            place = Path(temporary) / name
            place.mkdir()
            start_s = time.monotonic()
            try:
                if name == "metadata":
                    rows = of_metadata(place, made)
                else:
                    rows = checks(interpreter(name), place, given.torch, made)
                for row in rows:
                    print(f"{name:8}  {time.monotonic() - start_s:6.1f} s  {row}", flush=True)
                    start_s = time.monotonic()
            except Failed as error:
                print(f"{name:8}  FAILED  {error}", flush=True)
                failed += 1
            shutil.rmtree(place)
    print(f"{failed} failed" if failed else "can be released")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
