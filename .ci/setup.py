"""Set up .venv: the project in editable form, its development tools, and a torch that fits.

Standard library only; run it by `make setup`. The stamp in .venv records what the environment was
made from: a second run with the same files and the same interpreter installs nothing.

Which torch: the default Linux wheel of torch pulls gigabytes of CUDA packages, so they are
installed only where an NVIDIA driver is seen or `TORCH=cuda` asks for them.

    TORCH=auto           cuda where an NVIDIA driver is seen, else cpu (the default)
    TORCH=cpu            the configured package index if it offers a CPU build, else TORCH_CPU_INDEX
    TORCH=cuda           the CUDA build of the configured package index
    TORCH=<requirement>  exactly this, for example torch==2.12.0 or the path of a wheel
                         (with the CUDA packages it asks for, if it is a CUDA build)

A later run without TORCH or PYTHON keeps what .venv was made with.

pip is asked for the metadata first (`--dry-run --report`), so a refused build is not downloaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_OLD = ROOT / ".venv.old"
STAMP = VENV / "luwu-setup.json"
PINS = ROOT / ".ci" / "pins.py"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
TORCH_KINDS = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Offer:
    """The torch that pip would install."""

    version: str
    cuda: bool


def stop(message: str) -> NoReturn:
    """Ends the set-up with one clear message; configuration errors exit with 2."""
    print(f"setup: {message}", file=sys.stderr)
    sys.exit(2)


def say(message: str) -> None:
    """Prints one line at once, so that it stands before the output of pip."""
    print(f"setup: {message}", flush=True)


# --- The stamp -----------------------------------------------------------------------------------


def files_hash() -> str:
    """Hash of every file that decides what is installed."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", ".ci/setup.py", ".ci/pins.py"):
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return digest.hexdigest()


def read_stamp() -> dict[str, str]:
    """What .venv was made from; empty if it was not made here."""
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: Mapping[str, str]) -> None:
    """Records what .venv is made from."""
    STAMP.write_text(json.dumps(stamp, indent=1) + "\n")


def interpreter_id() -> str:
    """The real interpreter and its version; the same inside and outside of .venv."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return f"{Path(base).resolve()} {platform.python_version()}"


# --- Choosing torch ------------------------------------------------------------------------------


def nvidia_driver_seen() -> bool:
    """Whether this machine looks like one with an NVIDIA GPU."""
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def is_cuda_build(version: str, requires_dist: list[str]) -> bool:
    """Whether this torch wheel brings CUDA packages on this platform."""
    if sys.platform != "linux" or "+cpu" in version:
        return False
    if "+cu" in version:
        return True
    return any(
        re.match(r"(nvidia|cuda)[-_]", requirement) and "extra ==" not in requirement
        for requirement in requires_dist
    )


def ask_pip(requirement: str, index_args: list[str]) -> Offer | None:
    """What pip would install for `requirement`; None where it finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = pip("install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet")
        command += ["--only-binary=torch", "--use-feature=fast-deps", "--report", str(report)]
        command += [*index_args, requirement]
        asked = subprocess.run(command, check=False, capture_output=True, text=True)
        if asked.returncode != 0:
            errors = [line for line in asked.stderr.splitlines() if line.startswith("ERROR")]
            say("; ".join(errors[-2:]) or f"pip could not look for {requirement}")
            return None
        items = json.loads(report.read_text())["install"]
    for item in items:
        metadata = item["metadata"]
        if metadata["name"] == "torch":
            version = metadata["version"]
            return Offer(version, is_cuda_build(version, metadata.get("requires_dist", [])))
    return None


def pinned_torch(constraints: str) -> str:
    """The version of torch in constraints."""
    match = re.search(r"^torch==([\w.+]+)$", constraints, flags=re.MULTILINE)
    assert match is not None, "constraints.txt pins torch"
    return match.group(1)


def choose_torch(choice: str, cpu_index: str, pinned: str) -> tuple[list[str], str]:
    """The arguments of `pip install` that bring the torch asked for, and the reason in words."""
    if choice not in TORCH_KINDS:
        return [choice], f"{choice}, as TORCH says"
    kind, why = choice, f"TORCH={choice}"
    if choice == "auto":
        seen = nvidia_driver_seen()
        kind = "cuda" if seen else "cpu"
        why = "an NVIDIA driver is here" if seen else "no NVIDIA driver is here"

    offer = ask_pip(f"torch=={pinned}", [])
    if kind == "cuda":
        return choose_cuda(choice, why, pinned, offer)
    if offer is not None and not offer.cuda:
        return [f"torch==={offer.version}"], (
            f"{offer.version}, CPU build ({why}; the configured package index offers it)"
        )
    index_args = ["--index-url", cpu_index, "--retries", "1", "--timeout", "20"]
    offer_cpu = ask_pip(f"torch=={pinned}", index_args)
    if offer_cpu is not None and not offer_cpu.cuda:
        return [*index_args, f"torch==={offer_cpu.version}"], (
            f"{offer_cpu.version}, CPU build ({why}; from {cpu_index})"
        )
    version = platform.python_version()
    default = "only the CUDA build" if offer is not None else "nothing"
    stop(
        f"no CPU build of torch {pinned} for Python {version} ({why}).\n"
        f"  The configured package index offers {default}; {cpu_index} cannot be reached or has"
        " none.\n"
        "  Nothing was installed. Set one of these and run again:\n"
        "    TORCH_CPU_INDEX=URL   a mirror of PyTorch's CPU index\n"
        "    TORCH=cuda            the CUDA build (several gigabytes)\n"
        "    TORCH=REQUIREMENT     another torch, for example the path of a wheel\n"
        "    PYTHON=python3.X      another interpreter (3.11, 3.12 or 3.13)"
    )


def choose_cuda(choice: str, why: str, pinned: str, offer: Offer | None) -> tuple[list[str], str]:
    """The CUDA build; `===` leaves out a CPU build that pip would otherwise prefer."""
    found = offer
    if offer is None or not offer.cuda:
        found = ask_pip(f"torch==={pinned}", [])
    if found is not None and (found.cuda or sys.platform != "linux"):
        return [f"torch==={found.version}"], f"{found.version}, default build ({why})"
    if offer is not None and choice == "auto":
        return [f"torch==={offer.version}"], (
            f"{offer.version}, CPU build ({why}, but the configured index has no CUDA build)"
        )
    stop(
        f"no CUDA build of torch {pinned} for Python {platform.python_version()} in the configured"
        f" package index ({why}). Set TORCH=cpu, or TORCH=REQUIREMENT with another torch."
    )


# --- Installing ----------------------------------------------------------------------------------


def pip(*arguments: str) -> list[str]:
    """A command line for the pip of .venv."""
    return [str(VENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]


def run_pip(arguments: list[str], env: Mapping[str, str]) -> None:
    """Runs pip, with its progress bars on a terminal only; a failure ends the set-up."""
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    command = pip("install", "--no-compile", *quiet, *arguments)
    if subprocess.run(command, check=False, env=env).returncode != 0:
        stop("pip failed, see above")


@contextlib.contextmanager
def compiling(package: str = "") -> Iterator[None]:
    """Compiles a package of .venv, or all, meanwhile: pip takes one processor and a minute for it.

    Tests of packages are left out, and large ones of which few modules are ever used; what is not
    compiled here is when it is first imported.
    """
    places = {"base": str(VENV), "platbase": str(VENV)}
    site = Path(sysconfig.get_path("purelib", "venv", places))
    command = [str(VENV / "bin" / "python"), "-m", "compileall", "-qq", "-j", "0"]
    left_out = "site-packages/(.*/tests?|pip|ray|setuptools|transformers/models)/"
    with subprocess.Popen([*command, "-x", left_out, str(site / package)]) as process:
        try:
            yield
        except BaseException:
            process.terminate()
            raise


@contextlib.contextmanager
def fresh_venv() -> Iterator[None]:
    """Makes .venv anew with this interpreter; the old one comes back if anything fails."""
    shutil.rmtree(VENV_OLD, ignore_errors=True)
    if VENV.exists():
        VENV.rename(VENV_OLD)
    try:
        make_venv()
        yield
    except BaseException:
        shutil.rmtree(VENV, ignore_errors=True)
        if VENV_OLD.exists():
            VENV_OLD.rename(VENV)
        raise
    shutil.rmtree(VENV_OLD, ignore_errors=True)


def make_venv() -> None:
    """Makes an empty .venv; a Python without ensurepip cannot."""
    try:
        venv.EnvBuilder(symlinks=True, with_pip=True).create(VENV)
    except (subprocess.CalledProcessError, OSError) as error:
        stop(
            f"{sys.executable} cannot make a virtual environment ({error}).\n"
            "  On Debian and Ubuntu install python3-venv, or name another one with PYTHON="
        )


def install(choice: str, cpu_index: str) -> str:
    """Installs torch, then the project and its tools; returns the version of torch."""
    constraints = (ROOT / "constraints.txt").read_text()
    torch_args, reason = choose_torch(choice, cpu_index, pinned_torch(constraints))
    say(f"torch {reason}")

    env = {**os.environ, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    env.pop("PIP_CONSTRAINT", None)
    run_pip(["--no-deps", "--only-binary=torch", *torch_args], env)
    with compiling("torch"):
        suited = [str(VENV / "bin" / "python"), str(PINS), str(ROOT / "constraints.txt")]
        text = subprocess.run(suited, check=True, stdout=subprocess.PIPE, text=True).stdout
        torch_version = pinned_torch(text)

        pins = VENV / "constraints.txt"
        pins.write_text(text)
        # The variables reach the isolated build too, so hatchling is pinned like everything else.
        env["PIP_CONSTRAINT"] = env["PIP_BUILD_CONSTRAINT"] = str(pins)
        say("installing luwu and its development tools")
        run_pip(["--editable", f"{ROOT}[dev]"], env)
    with compiling():
        pass
    return torch_version


def main() -> None:
    """Brings .venv up to date, or finds that it is."""
    asked = os.environ.get("TORCH", "")
    stamp = read_stamp()
    choice = asked or stamp.get("torch", "auto")
    wanted = {
        "files": files_hash(),
        "interpreter": interpreter_id(),
        "torch": choice,
        "root": str(ROOT),
    }
    if stamp == wanted:
        return

    moved = stamp.get("root", str(ROOT)) != str(ROOT)
    inside = Path(sys.prefix).resolve() == VENV.resolve()
    if inside and moved:  # its scripts name the old place: start again from outside of it
        base = sys._base_executable  # type: ignore[attr-defined]
        os.execv(base, [base, __file__])

    keep = inside or (not moved and stamp.get("interpreter") == wanted["interpreter"])
    if not keep:
        say(f"making .venv with Python {platform.python_version()}")
    with contextlib.nullcontext() if keep else fresh_venv():
        write_stamp({**wanted, "files": "unfinished"})
        torch_version = install(choice, os.environ.get("TORCH_CPU_INDEX", "") or CPU_INDEX)
        write_stamp(wanted)
    say(f"done: Python {platform.python_version()}, torch {torch_version}, in .venv")


if __name__ == "__main__":
    main()
