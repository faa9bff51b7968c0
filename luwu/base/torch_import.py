"""`import torch`: in two thirds of the time, and once for several processes.

Importing torch makes half a million objects, and nearly all of them stay. So the garbage collector
is off meanwhile, and then leaves them alone, also at the end of the process (`expect_torch`).

A process that forks others can import torch for all of them (`import_for_children`). In a child,
torch stays out of sight until its script imports it, and this import must find what one of its own
would have found (`ImportedTorch.offer`): libraries read the environment while they are loaded, and
the path may lead to another torch. Where a script has changed either, its process begins again.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PRELOAD: Final = "LUWU_PRELOAD"
_NAME: Final = "torch"


def expect_torch() -> None:
    """Let the first import of torch in this process run without the garbage collector."""
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _Finder())


def import_for_children() -> ImportedTorch | None:
    """Import torch, for processes that will be forked; nothing with LUWU_PRELOAD=0.

    None if there is no torch, or if children cannot share it: they lack threads that run here, and
    a GPU that is in use here; and a sitecustomize of the user may look at a worker's rank.
    """
    if _NAME in sys.modules or _starts_by_user_code():
        return None
    if os.environ.get(PRELOAD) == "0":
        return ImportedTorch({})
    before = {*sys.modules, "__mp_main__"}  # a second name of __main__
    expect_torch()
    try:
        torch = importlib.import_module(_NAME)
    except ImportError:
        return None
    if torch.cuda.is_initialized() or not _is_alone_after_fork():
        return None
    new = [
        name for name in sys.modules
        if name not in before and _package(name) not in sys.stdlib_module_names
    ]  # fmt: skip
    return ImportedTorch({name: sys.modules[name] for name in new})


@dataclass(frozen=True, slots=True)
class ImportedTorch:
    """The modules that an import of torch loaded, without those of the standard library."""

    modules: dict[str, ModuleType]

    def offer(self, otherwise: Callable[[], object]) -> None:
        """In a child: hide the modules until one of them is imported.

        Torch brings back all, others their package. If the environment is then no longer what it
        is now, or if the path leads to others, `otherwise` is called, and must not return.
        """
        for name in self.modules:
            del sys.modules[name]
        sys.meta_path.insert(0, _Offer(self.modules, otherwise))


class _Offer(MetaPathFinder):
    """Finds the hidden modules, each once."""

    def __init__(self, modules: dict[str, ModuleType], otherwise: Callable[[], object]) -> None:
        self._modules, self._otherwise = modules, otherwise
        self._environ = dict(os.environ)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for all that was not hidden."""
        if name not in self._modules:
            return None
        package = _package(name)
        found = {
            each: module
            for each, module in self._modules.items()
            if package in (_NAME, _package(each))
        }
        if dict(os.environ) != self._environ or not all(map(self._is_on_path, found)):
            self._otherwise()
        _draw_seeds(found)
        for each in found:
            del self._modules[each]
        module = found.pop(name)
        sys.modules.update(found)
        if not self._modules:
            sys.meta_path.remove(self)
        return ModuleSpec(name, _Found(module))

    def _is_on_path(self, name: str) -> bool:
        """True if a package is where the path leads."""
        if "." in name:
            return True
        spec, known = PathFinder.find_spec(name), self._modules[name].__spec__
        return known is None or (spec is not None and spec.origin == known.origin)


def _package(name: str) -> str:
    return name.partition(".")[0]


def _draw_seeds(modules: Mapping[str, Any]) -> None:
    """Each process has seeds of its own, as from an import; for `random` Python sees to that."""
    if _NAME in modules:
        modules[_NAME].default_generator.seed()
    if "numpy.random" in modules:
        modules["numpy.random"].seed()


class _Found(Loader):
    """Gives a module that was loaded before, and leaves it as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set another


def _starts_by_user_code() -> bool:
    """True if Python has run a module of the user's as it began; systems may have one of theirs.

    So does coverage.py, which counts lines in the process that it began in.
    """
    found = filter(None, map(sys.modules.get, ("sitecustomize", "usercustomize")))
    own = Path(sysconfig.get_path("stdlib"))
    is_theirs = any(Path(str(each.__file__)).parent != own for each in found)
    return is_theirs or "coverage" in sys.modules


def _is_alone_after_fork() -> bool:
    """True if a fork leaves this process one thread; those of OpenBLAS end before it."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) == 1


class _Finder(MetaPathFinder):
    """Finds torch, once, as Python would."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """None for all but torch."""
        if name != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None and gc.isenabled():
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Python's own loader, which is put back before the module runs."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            gc.enable()
        gc.freeze()
