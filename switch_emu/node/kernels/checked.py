"""Results of self-checks, so that they are not repeated at every start of a node.

A *note* is an empty file beside the library, as private as that; its name is a hash of all that the
check depends on: the library's bytes, the kernel, torch, the sources of both kernels and of the
check. Whatever changes, no note has that name, and the check is done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Final

from switch_emu.native.build import Built

_SOURCES: Final = (
    "checked.py",
    "compiled.py",
    "interface.py",
    "narrow.py",
    "portable.py",
    "selfcheck.py",
)
_TORCH_ARITHMETIC: Final = ("lib/libtorch_cpu.so", "lib/libtorch_cpu.dylib", "version.py")
_TORCH_CHOOSES_BY: Final = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables by which it takes other instructions."""


def check_of(built: Built, kernel: str) -> str:
    """The name of the note of a kernel of this library, with the torch that is installed."""
    folder = Path(__file__).parent
    parts = [built.path.name, kernel, *(os.environ.get(key, "") for key in _TORCH_CHOOSES_BY)]
    parts += [_digest_of(folder / name) for name in _SOURCES]
    parts += [_digest_of(built.path), *_torch()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32] + ".agrees"


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _torch() -> list[str]:
    """The identity of this torch without importing it: sizes and times of its files."""
    spec = importlib.util.find_spec("torch")
    root = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    found = [str(root)]
    for name in _TORCH_ARITHMETIC:
        path = root / name
        if path.exists():
            status = path.stat()
            found.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return found
