"""First weights from safetensors files: read on rank 0, slice by slice, one unit at a time.

    luwu.load_pretrained(model, "llama-3", rename=lambda name: "model." + name)

The files take the place of `luwu.init_weights`; a name that `rename` maps to None is not among
them, and is made as it would be without (adapters beside a pretrained base). Values are taken as
float32 without rounding, whatever dtype the script registered. A run that goes on from a state has
weights, and reads no files for them.

Buffers stay with the worker, so those that a state_dict has are read on every rank, at the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from luwu.base.dtypes import BUFFER_DTYPES, DTYPES, OF_FILES
from luwu.base.errors import ConfigError
from luwu.tensor_files.directory import WIDENED, TensorDirectory, check_tensors

Rename = Callable[[str], str | None]


class Pretrained:
    """The files with a model's first weights; see the module."""

    def __init__(self, directory: Path, rename: Rename, model: nn.Module) -> None:
        self._directory, self._rename = directory, rename
        self._buffers = list(_persistent_buffers(model))
        self._files: TensorDirectory | None = None

    def has(self, name: str) -> bool:
        """True if a parameter of this name is among the files."""
        return self._rename(name) is not None

    def open(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Open and check the files, for parameters of these names and shapes.

        Raises: ConfigError, StateError.
        """
        self.close()
        self._files = TensorDirectory(self._directory)
        mine = {self._rename(name) for _, _, name in self._buffers}
        wanted: dict[str, tuple[int, ...]] = {}
        for ours, shape in shapes.items():
            name = self._rename(ours)
            if name is not None and wanted.setdefault(name, shape) != shape:
                raise ConfigError(
                    f"load_pretrained: rename gives {name} for parameters of the shapes "
                    f"{wanted[name]} and {shape}; they cannot both be it"
                )
        check_tensors(
            {name: found for name, found in self._files.tensors.items() if name not in mine},
            wanted,
            place=str(self._directory),
            dtypes=WIDENED,
            owner="the model",
        )

    def read(self, name: str, into: torch.Tensor) -> None:
        """Fill a float32 vector with a parameter's values."""
        assert self._files is not None, "opened before it is read"
        there = self._rename(name)
        assert there is not None
        self._files.read_float32(there, 0, into.numpy())

    def close(self) -> None:
        """Close the files."""
        if self._files is not None:
            self._files.close()
            self._files = None

    def fill_buffers(self, device: torch.device) -> None:
        """Read what belongs into the model's buffers; without any, no file is opened."""
        wanted = {there: each for each in self._buffers if (there := self._rename(each[2]))}
        if not wanted:
            return
        with TensorDirectory(self._directory) as files:
            shapes = {there: _buffer(each).shape for there, each in wanted.items()}
            check_tensors(
                {name: found for name, found in files.tensors.items() if name in wanted},
                {name: tuple(shape) for name, shape in shapes.items()},
                place=str(self._directory),
                dtypes=tuple(DTYPES[name].in_files for name in BUFFER_DTYPES),
                owner="the model's buffers",
            )
            for there, (module, name, _) in wanted.items():
                tensor = files.tensors[there]
                values = torch.empty(tensor.shape, dtype=getattr(torch, OF_FILES[tensor.dtype]))
                octets = values.reshape(-1).view(torch.uint8).numpy()
                files.read(there, 0, np.asarray(octets).data)
                buffer = module._buffers[name]
                assert buffer is not None
                if buffer.is_meta:
                    module._buffers[name] = values.to(device=device, dtype=buffer.dtype)
                else:
                    buffer.detach().copy_(values)


def _persistent_buffers(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """(module, its name of a buffer, full name) of those a state_dict would have."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield module, name, f"{prefix}.{name}" if prefix else name


def _buffer(each: tuple[nn.Module, str, str]) -> torch.Tensor:
    buffer = each[0]._buffers[each[1]]
    assert buffer is not None
    return buffer
