"""Compile `arithmetic.c` with the machine's compiler, once, and load it.

A library is kept under a name that is a hash of all it depends on: source, compiler, flags and
processor. So a new compiler or another machine never loads an old library, and nothing is ever
invalidated. What is loaded runs with our rights, so it lies in the user's cache and never in a
state, which is copied from elsewhere: the directory and the file must be ours and writable by
no other user, and a file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from luwu.base.directories import locked
from luwu.base.errors import ConfigError

SOURCE = Path(__file__).with_name("arithmetic.c")

COMPILE_SECONDS_MAX = 60.0

_FLAGS = (
    "-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-shared",
    "-fPIC",
)  # fmt: skip
_MACHINE_FLAGS = {
    "x86_64": ("-march=native", "-mprefer-vector-width=512"),
    "aarch64": ("-mcpu=native",),
}

_PARTIAL = ".arithmetic-"
"""Begins the name of a directory that a library is compiled in."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class BuildError(Exception):
    """There is no library, and this is why."""


@dataclass(frozen=True, slots=True)
class Built:
    """A loaded library."""

    library: ctypes.CDLL
    path: Path
    compiler: str
    """The compiler's first line about itself."""
    is_new: bool
    """Compiled just now; else found in the cache."""

    @property
    def origin(self) -> str:
        """Where it came from, for people."""
        return f"{'compiled' if self.is_new else 'found in the cache, compiled'} by {self.compiler}"


def user_cache() -> Path:
    """Where libraries lie: private to the user."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "luwu" / "kernels"


def build(cache: Path | None) -> Built:
    """The library, from the user's cache, or compiled into it. Raises BuildError.

    `cache`: another one, of a test or a benchmark; nothing that a job names.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise BuildError("no C compiler: there is no `cc` on the PATH")
    compiler_version = _run(compiler, "--version").partition("\n")[0].strip()
    flags = (*_FLAGS, *_MACHINE_FLAGS.get(platform.machine(), ()))
    source = SOURCE.read_bytes()
    parts = (source, compiler_version.encode(), " ".join(flags).encode(), processor())
    digest = hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts))
    try:
        name = f"arithmetic-{digest.hexdigest()[:32]}.so"
        directory = private_directory(user_cache() if cache is None else cache)
        path = directory / name
        library = _load(path)
        is_new = False
        with contextlib.ExitStack() as held:
            if library is None:  # of several processes that start together, one compiles
                with contextlib.suppress(OSError, ConfigError):  # where none can be had, each does
                    held.enter_context(locked(directory))
                    for left in directory.glob(f"{_PARTIAL}*"):  # by a job that ended meanwhile
                        shutil.rmtree(left, ignore_errors=True)
                library = _load(path)
            if library is None:
                _compile(compiler, flags, path)
                library, is_new = ctypes.CDLL(str(path)), True
        return Built(library, path, compiler_version, is_new)
    except (OSError, RuntimeError) as exc:  # RuntimeError: there is no home directory
        raise BuildError(f"the cache of kernels cannot be used: {exc}") from exc


def _load(path: Path) -> ctypes.CDLL | None:
    """The library, if it is there, ours and whole; e.g. a full disk cuts one short."""
    if not _is_ours(path):
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def check_once(built: Built, check: str, difference: Callable[[], str | None]) -> None:
    """Compare the bits of the library, unless this check found them equal before.

    `check`: names all that its result depends on beside the library. A result is recorded by an
    empty file beside the library, where that can be done. Raises BuildError with the difference.
    """
    digest = hashlib.sha256(f"{built.path.name}\0{check}".encode()).hexdigest()
    note = built.path.parent / f"{digest[:32]}.agrees"
    if _is_ours(note):
        return
    wrong = difference()
    if wrong is not None:
        raise BuildError(wrong)
    with contextlib.suppress(OSError):
        os.close(os.open(note, os.O_WRONLY | os.O_CREAT, 0o600))


def private_directory(path: Path) -> Path:
    """A directory for code to load, made if it is not there. Raises BuildError, OSError."""
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    for each in (path.parent, path):
        each.mkdir(mode=0o700, exist_ok=True)
    above = path.parent.stat()
    if above.st_uid == os.geteuid() and above.st_mode & _OTHERS_WRITE:
        path.parent.chmod(0o700)  # else another could put a directory in the place of this one
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
        raise BuildError(
            f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; "
            f"libraries are loaded only from a directory of user {os.geteuid()} that no "
            "other user can write: remove it, or set its mode to 700"
        )
    return path.resolve()


def _is_ours(path: Path) -> bool:
    """True if a file is there that no other user could have written."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISREG(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & _OTHERS_WRITE
    )


def _compile(compiler: str, flags: tuple[str, ...], path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=path.parent) as directory:
        partial = Path(directory) / path.name
        # Its own temporary files too: a job that ends meanwhile ends the compiler.
        _run(compiler, *flags, "-o", str(partial), str(SOURCE), "-lm", TMPDIR=directory)
        partial.chmod(0o700)
        with partial.open("rb") as file:
            os.fsync(file.fileno())  # after a power loss: all of it, or nothing under that name
        partial.replace(path)


def _run(*words: str, **environ: str) -> str:
    """Output of a program. Raises BuildError with the first line of its complaint."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL, timeout=COMPILE_SECONDS_MAX, env={**os.environ, **environ},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as exc:
        raise BuildError(f"{words[0]} could not be run: {exc}") from exc
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = next((line for line in lines if "error" in line), lines[0] if lines else "nothing")
        raise BuildError(f"{words[0]} failed with {done.returncode}: {said:.200}")
    return done.stdout


def processor() -> bytes:
    """Model and abilities of the processor: `-march=native` depends on them."""
    wanted: tuple[str, ...] = ("model name", "flags", "Features", "CPU part")
    found = {platform.machine()}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
        wanted = ("",)
    found.update(line for line in lines if line.startswith(wanted))
    return "\n".join(sorted(found)).encode()
