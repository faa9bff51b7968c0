"""Plain values and tensors as files: how arguments reach a worker process and results come back.

    value.json          the value; a tensor stands there as {"torch": "0"}, a tuple as {"tuple": []}
    torch.safetensors   its torch tensors        numpy.safetensors   its numpy arrays

Nothing that could run is written or read (I7): no pickle, no class by its name. So a value is made
of None, bool, int, float, str, bytes, list, tuple, dict, torch tensors and numpy arrays, each of
exactly that class; anything else is refused with its place. Tensors come back on the CPU, without
a gradient's history; two names for one tensor come back as two tensors.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError

DEPTH_MAX: Final = 50
_AS_THEY_ARE: Final = (type(None), bool, int, float, str)
_VALUE, _TORCH, _NUMPY = "value.json", "torch.safetensors", "numpy.safetensors"
_ADVICE: Final = (
    "None, bool, int, float, str, bytes, list, tuple, dict, torch tensors and numpy arrays "
    "travel between a test and its worker processes; turn it into these"
)


def save_value(folder: Path, value: object, *, name: str) -> None:
    """Write a value; `name` is what messages call it, such as `args`. Raises ConfigError."""
    writer = _Writer()
    text = json.dumps(writer.plain(value, name, DEPTH_MAX))
    folder.mkdir(parents=True)
    if writer.torch:
        from safetensors.torch import save_file as save_torch

        save_torch(writer.torch, folder / _TORCH)
    if writer.numpy:
        from safetensors.numpy import save_file as save_numpy

        save_numpy(writer.numpy, folder / _NUMPY)
    partial = folder / f"{_VALUE}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(folder / _VALUE)


def load_value(folder: Path) -> Any:
    """Read a value. Raises FileNotFoundError."""
    plain = json.loads((folder / _VALUE).read_text(encoding="utf-8"))
    tensors: dict[str, dict[str, Any]] = {}
    if (folder / _TORCH).exists():
        from safetensors.torch import load_file as load_torch

        tensors["torch"] = load_torch(folder / _TORCH)
    if (folder / _NUMPY).exists():
        from safetensors.numpy import load_file as load_numpy

        tensors["numpy"] = load_numpy(folder / _NUMPY)
    return _whole(plain, tensors)


class _Writer:
    """Takes a value apart."""

    def __init__(self) -> None:
        self.torch: dict[str, Any] = {}
        self.numpy: dict[str, Any] = {}

    def plain(self, value: Any, place: str, depth: int) -> Any:
        """What JSON says of a value; its tensors are put aside."""
        if depth == 0:
            raise ConfigError(f"{place:.200}...: nested more than {DEPTH_MAX} deep, or in itself")
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is list or kind is tuple:
            items = [
                self.plain(item, f"{place}[{index}]", depth - 1) for index, item in enumerate(value)
            ]
            return items if kind is list else {"tuple": items}
        if kind is dict:
            for key in value:
                if type(key) not in _AS_THEY_ARE:
                    raise ConfigError(
                        f"{place} has the key {key!r:.60}, {_named(type(key))}; the keys of a "
                        "dict that travels are text, numbers, bool or None"
                    )
            return {"dict": [
                [key, self.plain(item, f"{place}[{key!r}]", depth - 1)]
                for key, item in value.items()
            ]}  # fmt: skip
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        return self._tensor(value, place)

    def _tensor(self, value: Any, place: str) -> Any:
        """What has these classes has imported their package."""
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            if value.layout is not torch.strided:
                raise ConfigError(f"{place} is a tensor of layout {value.layout}; make it dense")
            name = str(len(self.torch))
            self.torch[name] = value.detach().to("cpu", copy=True).contiguous()
            return {"torch": name}
        if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            if value.dtype.kind not in "biuf":
                raise ConfigError(
                    f"{place} is a numpy array of {value.dtype}; bool, integers and floats travel"
                )
            name = str(len(self.numpy))
            native = value.dtype.newbyteorder("=")
            self.numpy[name] = numpy.ascontiguousarray(value, native).reshape(value.shape)
            return {"numpy" if type(value) is numpy.ndarray else "scalar": name}
        raise ConfigError(f"{place} is {value!r:.60}, {_named(type(value))}; {_ADVICE}")


def _whole(plain: Any, tensors: dict[str, dict[str, Any]]) -> Any:
    if isinstance(plain, list):
        return [_whole(item, tensors) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    match kind:
        case "tuple":
            return tuple(_whole(item, tensors) for item in content)
        case "dict":
            return {key: _whole(item, tensors) for key, item in content}
        case "bytes":
            return base64.b64decode(content)
        case "scalar":
            return tensors["numpy"][content][()]
        case _:
            return tensors[kind][content]


def _named(kind: type) -> str:
    return f"of {kind.__module__}.{kind.__qualname__}"
