"""`import torch` without the garbage collector, in two thirds of the time.

The collector runs each time some hundred objects were made. Importing torch makes half a million,
and nearly all of them stay. So it is off while torch is imported, and then leaves these objects
alone, also at the end of the process.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

_NAME: Final = "torch"


def expect_torch() -> None:
    """Let the first import of torch in this process run without the garbage collector."""
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _Finder())


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

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As Python does."""
        found: ModuleType | None = self._loader.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Import it."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        gc.disable()
        try:
            self._loader.exec_module(module)
        finally:
            gc.enable()
        gc.freeze()
