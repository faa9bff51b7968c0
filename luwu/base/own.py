"""LuWu's own packages beside this one, also where another folder of that name would come first.

`switch_emu` and `workers` are beside `luwu`, and Python takes the first folder of a name: a
`workers` in the directory that a command is started in, or on PYTHONPATH, would hide ours.

    take("switch_emu")                    in a process of ours: `import switch_emu` is ours now
    python -m luwu.base.own switch_emu node ...   as `python -m switch_emu node ...`, surely ours
    python -m luwu.base.own workers.train ...     likewise

A training script's process is not ours: there `workers` is whatever Python finds.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError

DISTRIBUTION: Final = "luwu-emulator"
"""The name of this package for pip. The package `luwu` of the public index is another project."""
PACKAGES: Final = ("switch_emu", "workers")
BESIDE: Final = Path(__file__).resolve().parents[2]
"""The directory that holds our packages: that of the source, or site-packages."""


def take(name: str) -> None:
    """Import one of our packages, whatever else has its name. Raises ConfigError.

    A package of that name which this process has already imported cannot be exchanged.
    """
    directory = BESIDE / name
    there = sys.modules.get(name)
    if there is not None:
        paths = [Path(path).resolve() for path in getattr(there, "__path__", [])]
        if directory not in paths:
            raise ConfigError(
                f"{name} is that of {', '.join(map(str, paths)) or there} in this process, and "
                f"LuWu needs its own, {directory}; import luwu's modules before, or rename yours"
            )
        return
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None or not directory.is_dir():
        raise ConfigError(f"LuWu's package {name} is not in {BESIDE}; install LuWu again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def version() -> str:
    """The installed version, or the place of the source that runs."""
    from importlib import metadata  # takes 40 ms; few processes ask for the version

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"from {BESIDE}, not installed"


def needs(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def own_module(module: str) -> list[str]:
    """The arguments of `python` that run one of our modules."""
    assert module.partition(".")[0] in PACKAGES
    return ["-m", "luwu.base.own", module]


def main(arguments: Sequence[str]) -> None:
    """Run one of our modules as `__main__`; ends as it ends."""
    __tracebackhide__ = True
    module = arguments[0]
    take(module.partition(".")[0])
    sys.argv = list(arguments)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
