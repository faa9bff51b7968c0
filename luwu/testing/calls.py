"""A function that worker processes are to call: by its name, never as an object (I7).

    call/call.json        the function's module, file and name; the path Python imports from
    call/arguments        what it gets after its rank (`save_value`)
    call/result-R         what it returned in rank R

pytest imports test modules in several ways (`--import-mode`), and not all of them leave a name that
can be imported elsewhere. So the file goes along: a module whose name does not lead to its file
is loaded from there, under its name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json, write_json
from luwu.base.values import pack_value, unpack_value

__tracebackhide__ = True
ADVICE = "move it to the top level of a module, and give it what it needs by args="


def name_function(function: Callable[..., Any]) -> dict[str, str]:
    """The `module`, `file` and name by which another process finds a function.

    Raises: ConfigError
    """
    if not isinstance(function, types.FunctionType):
        raise ConfigError(
            f"{function!r:.100} is not a function, but a {type(function).__qualname__}; worker "
            f"processes call a plain function: write one, and {ADVICE.partition(', and ')[2]}"
        )
    name = function.__qualname__
    if "<lambda>" in name:
        raise ConfigError(f"worker processes cannot import a lambda; name it with def, {ADVICE}")
    if "<locals>" in name:
        raise ConfigError(
            f"worker processes cannot import {name}, which is made while a function runs; {ADVICE}"
        )
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        raise ConfigError(f"{name} is of the module {function.__module__}, which has no file")
    if _look_up(module, name) is not function:
        raise ConfigError(
            f"{function.__module__}.{name} is not the function that was passed, but for example "
            "its decorated form; pass the object that has this name in the module"
        )
    return {
        "module": function.__module__, "file": str(Path(file).resolve()), "function": name,
    }  # fmt: skip


def write_call(folder: Path, function: Callable[..., Any], args: Sequence[object]) -> Path:
    """Write a call down; the file that workers get. Raises ConfigError."""
    named = name_function(function)
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise ConfigError(f"args is {args!r:.60}; give a tuple, as args=(value,)")
    save_value(folder / "arguments", tuple(args), name="args")
    file = folder / "call.json"
    path = [str(Path(each or ".").absolute()) for each in sys.path]
    write_json(file, {"schema": 1, **named, "path": path})
    return file


def read_call(file: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and its arguments, in a worker; imports its module. Raises ConfigError."""
    document = read_json(file)
    if document is None:
        raise ConfigError(f"there is no call in {file}; luwu_run writes it")
    sys.path[:] = document["path"]
    module = _import(document["module"], Path(document["file"]))
    return _look_up(module, document["function"]), load_value(file.parent / "arguments")


def result_file(call: Path, rank: int) -> Path:
    """The file of what a call returned in a rank."""
    return call.parent / f"result-{rank}"


def _look_up(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _import(name: str, file: Path) -> types.ModuleType:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file:
        return importlib.import_module(name)
    return _import_from(name, file)


def _import_from(name: str, file: Path) -> types.ModuleType:
    """Import a module that its name does not lead to, after the packages it is in."""
    folder = file.parent
    is_package = file.name == "__init__.py"
    parent = name.rpartition(".")[0]
    if parent:
        above = folder.parent if is_package else folder
        known = sys.modules.get(parent)
        if known is None or str(above) not in list(getattr(known, "__path__", ())):
            _import_package(parent, above)
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(folder)] if is_package else None
    )
    assert spec is not None, file
    assert spec.loader is not None, file
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_package(name: str, folder: Path) -> None:
    file = folder / "__init__.py"
    if file.exists():
        _import_from(name, file)
        return
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def save_value(file: Path, value: object, *, name: str) -> None:
    """Write a value; `name` is what messages call it, such as `args`. Raises ConfigError."""
    data = pack_value(value, name=name)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(data)
    partial.rename(file)


def load_value(file: Path) -> Any:
    """Read a value. Raises FileNotFoundError, RemoteProtocolError."""
    return unpack_value(file.read_bytes())
