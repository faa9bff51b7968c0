"""DeepSpeed's libraries, compiled before the first arm that loads them, and kept.

    CACHE/luwu/deepspeed/KEY    the libraries; KEY is a hash of all that they depend on
    python -m benchmarks.peers_libraries zero-infinity    compiles, into TORCH_EXTENSIONS_DIR

DeepSpeed compiles C++ where a rank first needs it: minutes, without a word. So one process does it
ahead. What it has done is kept, however it ends: the next one compiles the rest. A process that is
killed meanwhile leaves a file `lock`, for which later ones wait for ever; one benchmark or compiler
at a time has the directory, so a lock that it finds there is such a one, and is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from benchmarks.harness import say
from luwu.base.errors import ConfigError, LuwuError
from switch_emu.native.build import BuildError, private_directory, processor, user_cache

OFFLOAD, INFINITY = "zero3-offload", "zero-infinity"
ZERO_ARMS = (OFFLOAD, INFINITY)
SWAP = "LUWU_PEERS_SWAP"
"""Variable with the directory of ZeRO-Infinity's files; empty for ZeRO-3 in memory."""
PACKAGE = "deepspeed>=0.19.8,<0.20"
BUILDERS = {
    OFFLOAD: ("CPUAdamBuilder", "PinMemoryBuilder"),
    INFINITY: ("CPUAdamBuilder", "PinMemoryBuilder", "AsyncIOBuilder"),
}
"""By arm: the builders of the libraries that its ranks load."""
CPU_BUILDERS = ("ShareMemCommBuilder",)
"""Those of the CPU accelerator's process group."""


def check_deepspeed(arms: Sequence[str]) -> None:
    """Raises ConfigError where an arm needs what is not installed."""
    needed = [arm for arm in arms if arm in ZERO_ARMS]
    if not needed:
        return
    missing = [] if find_spec("deepspeed") else [f"the package deepspeed (pip install '{PACKAGE}')"]
    missing += [f"the program {name}" for name in ("c++", "ninja") if not _which(name)]
    if missing:
        raise ConfigError(
            f"arms: {' and '.join(needed)} need {' and '.join(missing)}; install that, or leave "
            "them out of --arms"
        )


@contextmanager
def libraries(arms: Sequence[str]) -> Iterator[dict[str, str]]:
    """The environment of ranks whose libraries are there. Raises ConfigError, LuwuError."""
    needed = [arm for arm in arms if arm in ZERO_ARMS]
    if not needed:
        yield {}
        return
    try:
        directory = private_directory(user_cache().with_name("deepspeed") / _key())
    except (BuildError, OSError) as exc:
        raise ConfigError(f"the cache of DeepSpeed's libraries cannot be used: {exc}") from exc
    with (directory / "in-use").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise ConfigError(f"another benchmark uses {directory}; wait for its end") from exc
        environ = {"TORCH_EXTENSIONS_DIR": str(directory), "PATH": _path()}
        for lock in directory.glob("*/lock"):
            lock.unlink()
        _compile(INFINITY if INFINITY in needed else OFFLOAD, directory, environ, held)
        yield environ


def _compile(arm: str, directory: Path, environ: dict[str, str], held: IO[str]) -> None:
    """Compile what an arm loads, unless that was done."""
    log = directory / "log"
    if any((directory / f"{name}.done").exists() for name in (arm, INFINITY)):
        return  # those of zero-infinity are those of both
    say(
        f"compiling DeepSpeed's libraries, once: about five minutes on two cores; log {log}. What "
        "is done is kept if you stop it"
    )
    if code := _run_compiler(arm, log, environ, held):
        lines = log.read_text(errors="replace").splitlines()
        last = lines[-1] if lines else f"it ended with code {code}"
        raise LuwuError(f"DeepSpeed's libraries cannot be compiled: {last}; see {log}")


def _run_compiler(arm: str, log: Path, environ: dict[str, str], held: IO[str]) -> int:
    """The exit code of `main`, which holds the directory until its own end."""
    command = [sys.executable, "-m", "benchmarks.peers_libraries", arm]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, env={**os.environ, **environ}, stdout=output, stderr=output,
            pass_fds=(held.fileno(),), start_new_session=True,
        ) as compiler,
    ):  # fmt: skip
        try:
            return compiler.wait()
        except BaseException:
            os.killpg(compiler.pid, signal.SIGTERM)  # ninja and compilers too
            raise


def _path() -> str:
    """Where programs are looked for; ninja is one of Python's packages."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _which(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _key() -> str:
    # Compiler commands name the headers of torch and DeepSpeed, which lie below the prefix.
    compiler = subprocess.run(["c++", "--version"], capture_output=True, check=False).stdout
    versions = [f"{name} {metadata.version(name)}" for name in ("deepspeed", "torch")]
    parts = (
        sys.prefix, platform.python_version(), *versions, _device(), processor().decode(),
        compiler.decode(errors="replace"),
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def main(arm: str) -> int:
    """Compile and load each library of the arm, in a process of its own."""
    os.environ["DS_ACCELERATOR"] = _device()
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    for name in (*BUILDERS[arm], *(CPU_BUILDERS if _device() == "cpu" else ())):
        builder = accelerator.create_op_builder(name)
        if name == "AsyncIOBuilder" and not builder.is_compatible(False):
            print("zero-infinity needs the headers of libaio (libaio-dev on Debian)")
            return 1
        builder.load(False)
    Path(os.environ["TORCH_EXTENSIONS_DIR"], f"{arm}.done").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
