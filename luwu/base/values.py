"""Plain values and tensors as bytes: state that is kept beside a step, arguments and results.

    msgpack of {"value": JSON; a tensor is there as {"torch": "0"}, a tuple as {"tuple": []}
                "torch": safetensors of its torch tensors, "numpy": of its numpy arrays}

Nothing that could run is written or read (I7): no pickle, no class by its name. So a value is made
of None, bool, int, float, str, bytes, list, tuple, dict, torch tensors and numpy arrays, each of
exactly that class; anything else is rejected with its place. Tensors come back on the CPU, without
a gradient's history; two names for one tensor come back as two tensors.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from typing import Any, Final

import msgpack

from luwu.base.errors import ConfigError, RemoteProtocolError

DEPTH_MAX: Final = 50
_AS_THEY_ARE: Final = (type(None), bool, int, float, str)
_ADVICE: Final = (
    "None, bool, int, float, str, bytes, list, tuple, dict, torch tensors and numpy arrays can be "
    "packed; turn it into these"
)


def pack_value(value: object, *, name: str) -> bytes:
    """A value as bytes; `name` is what messages call it, such as `args`. Raises ConfigError."""
    writer = _Writer()
    document: dict[str, Any] = {"value": json.dumps(writer.plain(value, name, DEPTH_MAX))}
    for package, tensors in (("torch", writer.torch), ("numpy", writer.numpy)):
        if tensors:
            document[package] = _safetensors(package).save(tensors)
    packed: bytes = msgpack.packb(document)
    return packed


def unpack_value(data: bytes) -> Any:
    """The value in these bytes. Raises RemoteProtocolError if they are not what `pack_value` made.

    They may come from anywhere: nothing in them is run.
    """
    try:
        document = msgpack.unpackb(data, max_map_len=3)
        packages = [each for each in ("torch", "numpy") if each in document]
        tensors = {each: _safetensors(each).load(document[each]) for each in packages}
        return _whole(json.loads(document["value"]), tensors)
    except Exception as exc:  # msgpack, safetensors and JSON raise many kinds
        raise RemoteProtocolError(f"a packed value cannot be read: {exc}") from exc


def _safetensors(package: str) -> Any:
    """Functions that write and read tensors, of torch or numpy; imported where there are any."""
    return importlib.import_module(f"safetensors.{package}")


class _Writer:
    """Takes a value apart."""

    def __init__(self) -> None:
        self.torch: dict[str, Any] = {}
        self.numpy: dict[str, Any] = {}

    def plain(self, value: Any, place: str, depth: int) -> Any:
        """A value as JSON would show it; its tensors are put aside."""
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
                        "dict must be text, numbers, bool or None"
                    )
            return {"dict": [
                [key, self.plain(item, f"{place}[{key!r}]", depth - 1)]
                for key, item in value.items()
            ]}  # fmt: skip
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode("ascii")}
        return self._tensor(value, place)

    def _tensor(self, value: Any, place: str) -> Any:
        """A tensor of torch or NumPy; a value of these classes has imported their package."""
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
                    f"{place} is a numpy array of {value.dtype}; bool, integers and floats can "
                    "be packed"
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
