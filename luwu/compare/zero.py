"""What DeepSpeed's arms need before they start: DeepSpeed, its libraries, a place for its files.

DeepSpeed compiles its libraries (C++, minutes) when they are first used. One process does that
ahead, and what it made is kept for later runs:

    CACHE/luwu/deepspeed/KEY    the libraries; KEY is a hash of all they depend on
    RUN/deepspeed               the copy of a run, removed at its end

A rank that is killed while it loads a library leaves a file `lock`, for which the next waits for
ever. So every run has a copy of its own, and CACHE has only what was compiled to the end.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final

from luwu.base.config import INFINITY, RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.json_file import read_json
from luwu.base.own import needs, own_module
from luwu.launch.agent import Share
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.supervisor import Supervisor
from switch_emu.native.build import BuildError, private_directory, processor, user_cache

_PREFIX: Final = "deepspeed-"
_GPUS: Final = "TORCH_CUDA_ARCH_LIST"


def check_deepspeed(arm: str) -> None:
    """Raises ConfigError where DeepSpeed is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            f"arms: {arm} needs the package deepspeed; {needs('peers')}, or leave the arm out",
            code="E208",
        )


def swap_directory(config: RunConfig, run: RunDirectory) -> Path:
    """Where ZeRO-Infinity's files lie: on the disk that luwu's state is on."""
    if config.state is None:
        return run.file(INFINITY)
    return config.state.absolute().with_name(f"{config.state.name}-{run.path.name}-{INFINITY}")


def ready_libraries(
    arm: str, config: RunConfig, run: RunDirectory, console: Console,
    should_stop: Callable[[], bool],
) -> Path:  # fmt: skip
    """The directory of DeepSpeed's libraries, which are compiled unless they are there.

    Raises ConfigError if they cannot be compiled, Interrupted.
    """
    most = INFINITY if INFINITY in config.arms else arm  # its libraries are those of both
    libraries, environ = run.file("deepspeed"), _environ(run)
    cache, key = _cache(), _key(arm, environ["PATH"])
    for name in (most, INFINITY):
        if (kept := cache / f"{key}-{name}").is_dir():
            return kept
    log = run.log(f"{_PREFIX}worker-0")
    console.say(f"{arm}: compiling DeepSpeed's libraries, once; that takes minutes. Log {log}")
    try:
        libraries.mkdir()
        _compile(most, environ, run, console, should_stop)
        return _keep(libraries, cache / f"{key}-{most}")
    finally:
        shutil.rmtree(libraries, ignore_errors=True)


@contextmanager
def zero_environ(
    arm: str, config: RunConfig, run: RunDirectory, console: Console,
    should_stop: Callable[[], bool],
) -> Iterator[dict[str, str]]:  # fmt: skip
    """The variables of the ranks' environment; what the ranks leave is removed at the end.

    Raises as `ready_libraries` does.
    """
    kept = ready_libraries(arm, config, run, console, should_stop)
    libraries, swap = run.file("deepspeed"), swap_directory(config, run)
    try:
        shutil.copytree(kept, libraries)
        if arm == INFINITY:
            swap.mkdir(parents=True)
        yield _environ(run)
    finally:
        shutil.rmtree(libraries, ignore_errors=True)
        shutil.rmtree(swap, ignore_errors=True)


def _environ(run: RunDirectory) -> dict[str, str]:
    own_programs = str(Path(sys.executable).parent)  # ninja is one of Python's packages
    environ = {
        "TORCH_EXTENSIONS_DIR": str(run.file("deepspeed")),
        "PATH": os.pathsep.join([own_programs, os.environ.get("PATH", os.defpath)]),
    }
    if gpus := os.environ.get(_GPUS):  # DeepSpeed 0.19 fails at 9.0a, which torch takes
        environ[_GPUS] = re.sub(r"(\d)[af]", r"\1", gpus)
    return environ


def _compile(
    arm: str, environ: dict[str, str], run: RunDirectory, console: Console,
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    with Supervisor(run, console, should_stop=should_stop, prefix=_PREFIX) as supervisor:
        supervisor.worker_environ = environ
        supervisor.train(
            [*own_module("workers.zero_ops"), arm], share=Share.of_all(1), connect=None,
            alone=True, threads=1, sink=lambda data, is_error: None,
        )  # fmt: skip
        try:
            supervisor.wait()
        except LuwuError as error:
            said = read_json(run.error(f"{_PREFIX}worker-0"))
            if said is not None and said["exit_code"] == ConfigError.exit_code:
                raise ConfigError(said["message"]) from error
            raise


def _keep(libraries: Path, kept: Path) -> Path:
    """Copy what was compiled into the cache, whole or not at all; where it is now."""
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=kept.parent) as folder:
        partial = Path(folder) / kept.name
        shutil.copytree(libraries, partial)
        try:
            partial.rename(kept)
        except OSError:  # another run was faster
            if not kept.is_dir():
                raise
    return kept


def _cache() -> Path:
    try:
        return private_directory(user_cache().with_name("deepspeed"))
    except (BuildError, OSError) as exc:
        raise ConfigError(f"the cache of DeepSpeed's libraries cannot be used: {exc}") from exc


def _key(arm: str, path: str) -> str:
    """Hash of what the libraries depend on; ninja compiles anew for another ninja."""
    import torch

    versions = [f"{name} {metadata.version(name)}" for name in ("deepspeed", "torch")]
    versions.append("cuda" if torch.cuda.is_available() else "cpu")  # as workers/zero_ops.py has it
    for program in ((os.environ.get("CXX") or "c++").split()[0], "ninja"):
        found = shutil.which(program, path=path)
        if found is None:
            raise ConfigError(
                f"arms: {arm} compiles DeepSpeed's libraries, and {program} is not on the PATH; "
                "install a C++ compiler (g++) and ninja"
            )
        said = subprocess.run([found, "--version"], capture_output=True, check=False).stdout
        versions.append(said.decode(errors="replace"))
    # Compiler commands name the headers of torch and DeepSpeed, which lie below the prefix.
    place = str(Path(sys.prefix).resolve())
    parts = (place, platform.python_version(), *versions, processor().decode())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
