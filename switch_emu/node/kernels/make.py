"""Choose the update kernel of a node: compiled where that works and keeps its promise.

The portable kernel needs torch, which takes longer to import than a node to start. So it is
imported only where it is used, or compared with: a node that comes back has neither.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from switch_emu.native.build import BuildError, build, check_once
from switch_emu.native.fold import Product, portable_product
from switch_emu.node.kernels.compiled import CompiledKernel
from switch_emu.node.kernels.interface import Made
from switch_emu.node.kernels.selfcheck import difference
from switch_emu.node.kernels.updates import Update, find_update, kernel_name

if TYPE_CHECKING:
    from switch_emu.node.kernels.portable import PortableKernel

_TORCH_ARITHMETIC: Final = ("lib/libtorch_cpu.so", "lib/libtorch_cpu.dylib", "version.py")
_TORCH_CHOOSES_BY: Final = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables by which it takes other instructions."""


def make_kernel(optimizer: str, state_fields: tuple[str, ...], *, cache: Path | None) -> Made:
    """The kernel of an optimizer, and why it is the version it is: the compiled one if it works.

    `cache` keeps compiled libraries; None is the user's own, as for every job.
    Raises: ConfigError if the node has no such optimizer.
    """
    update = _found(optimizer, state_fields)
    name = kernel_name(update.optimizer, state_fields)
    arithmetic = update.compiled
    if arithmetic is None:
        reason = f"there is no compiled version of {name}"
        return Made(portable_kernel(optimizer, state_fields), reason)

    def compare() -> str | None:
        wrong = difference(kernel, portable_kernel(optimizer, state_fields), arithmetic.checks)
        return wrong and f"the compiled kernel does not give torch's bits here: {wrong}"

    try:
        built = build(cache)
        kernel = CompiledKernel(built.library, name, arithmetic, state_fields)
        check_once(built, f"{name} {_compared_with()}", compare)
    except BuildError as exc:
        return Made(portable_kernel(optimizer, state_fields), str(exc))
    return Made(kernel, built.origin)


def _compared_with() -> str:
    """The torch that is installed, without importing it, and the modules that compare."""
    spec = importlib.util.find_spec("torch")
    root = Path(spec.origin).parent if spec is not None and spec.origin else Path()
    found = [str(root), *(os.environ.get(key, "") for key in _TORCH_CHOOSES_BY)]
    for path in [root / name for name in _TORCH_ARITHMETIC]:
        if path.exists():
            status = path.stat()
            found.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    sources = sorted(Path(__file__).parent.glob("*.py"))
    found += [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
    return "\0".join(found)


def make_whole_kernel(optimizer: str, state_fields: tuple[str, ...]) -> PortableKernel:
    """The kernel of parameters that an optimizer sees as a whole; `state_fields`: what they keep.

    Raises ConfigError if the node has no such optimizer.
    """
    from switch_emu.node.kernels.portable import Muon, PortableKernel

    if optimizer != "muon":
        kernel = portable_kernel(optimizer, state_fields)
        return PortableKernel(kernel.name, state_fields, kernel.step, whole=True)
    muon = Muon(portable_product)
    with contextlib.suppress(BuildError):
        muon = Muon(Product(build(None).library))
    return PortableKernel("muon-f32", state_fields, muon, whole=True)


def check_known(optimizer: str, state_fields: tuple[str, ...]) -> None:
    """Raises ConfigError if the node has no such update, or cannot import it."""
    find_update(optimizer, state_fields).load()


def portable_kernel(optimizer: str, state_fields: tuple[str, ...]) -> PortableKernel:
    """The portable version. Raises ConfigError if there is none, or it cannot be imported."""
    from switch_emu.node.kernels.portable import PortableKernel

    update = _found(optimizer, state_fields)
    name = kernel_name(update.optimizer, state_fields)
    return PortableKernel(name, state_fields, update.load())


def _found(optimizer: str, state_fields: tuple[str, ...]) -> Update:
    """The update of what an optimizer sees element by element."""
    found = find_update(optimizer, state_fields)
    return found if found.beside is None else find_update(found.beside, state_fields)
