"""A directory of safetensors files as one set of tensors, read slice by slice.

    STEM.safetensors                                 one file, or
    STEM.safetensors.index.json                      {"weight_map": {"name": "file", ...}}
    STEM-00001-of-00003.safetensors ...              the files it names

Headers are read and checked when it is opened, nothing else is; a slice is read when it is asked
for. One thread at a time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Collection, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from luwu.base.closing import Closing
from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.base.errors import ConfigError, DamagedFileError
from luwu.base.foreign import open_file, parse_json, read_file
from luwu.tensor_files.header import HEADER_BYTES_MAX, LENGTH_BYTES, Tensor, parse_header

F32Array = npt.NDArray[np.float32]

SUFFIX: Final = ".safetensors"
INDEX_SUFFIX: Final = ".safetensors.index.json"
WIDENED: Final = tuple(DTYPES[name].in_files for name in WIRE_DTYPES)
"""Dtypes that can be read as float32 exactly."""

SHARDS_MAX: Final = 10_000
_OPEN_MAX: Final = 32
"""Files kept open at once."""
_NAME_BYTES_MAX: Final = 255
_SCRATCH_ELEMS: Final = 128 * 1024


class TensorDirectory(Closing):
    """The tensors of one stem; `tensors` says what they are."""

    def __init__(self, directory: Path, stem: str = "model") -> None:
        """Raises: ConfigError if they are not there; DamagedFileError if a file is damaged."""
        self.directory = directory
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[str, tuple[str, int]] = {}
        """File and first byte within it."""
        self._open: OrderedDict[str, FileIO] = OrderedDict()
        self._scratch = np.empty(0, np.uint16)
        try:
            for name, listed in _files(directory, stem).items():
                self._add(name, listed)
        except BaseException:
            self.close()
            raise

    def read(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with a tensor's bytes from element `start` on. Raises DamagedFileError."""
        file, at = self._places[name]
        self._fill(file, at + start * self.tensors[name].elem_bytes, into)

    def read_float32(self, name: str, start: int, into: F32Array) -> None:
        """Fill `into` with values from element `start` on, widened exactly."""
        dtype = self.tensors[name].dtype
        if dtype == "F32":
            self.read(name, start, into.view(np.uint8).data)
            return
        if dtype not in WIDENED:
            raise ConfigError(
                f"{self.directory}: tensor {name} is {dtype}; values of {', '.join(WIDENED)} "
                "can be taken as float32, others cannot"
            )
        if not self._scratch.size:
            self._scratch = np.empty(_SCRATCH_ELEMS, np.uint16)
        for first in range(0, into.size, _SCRATCH_ELEMS):
            out = into[first : first + _SCRATCH_ELEMS]
            bits = self._scratch[: out.size]
            self.read(name, start + first, bits.view(np.uint8).data)
            if dtype == "F16":
                out[:] = bits.view(np.float16)
            else:  # bfloat16 is the upper half of a float32
                np.left_shift(bits, 16, out=out.view(np.uint32), dtype=np.uint32)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _add(self, file_name: str, listed: set[str] | None) -> None:
        """Take over the tensors of a file; `listed`: those the index says are in it."""
        path = self.directory / file_name
        size = os.fstat(self._opened(file_name).fileno()).st_size
        length = bytearray(LENGTH_BYTES)
        if size < LENGTH_BYTES:
            raise DamagedFileError(
                f"{path} has {size} bytes: it was cut short. Get the file again."
            )
        self._fill(file_name, 0, memoryview(length))
        header_bytes = int.from_bytes(length, "little")
        if header_bytes > min(HEADER_BYTES_MAX, size - LENGTH_BYTES):
            raise DamagedFileError(
                f"{path}: its header is to have {header_bytes} bytes, of a file of {size} (at most "
                f"{HEADER_BYTES_MAX}). It was cut short or is not a safetensors file; get it again."
            )
        text = bytearray(header_bytes)
        self._fill(file_name, LENGTH_BYTES, memoryview(text))
        data_at = LENGTH_BYTES + header_bytes
        found = parse_header(bytes(text), size - data_at, place=str(path))
        names = {tensor.name for tensor in found}
        if listed is not None and names != listed:
            raise DamagedFileError(
                f"{path} and the index differ: "
                f"only in the file: {shown(sorted(names - listed)) or 'nothing'}; "
                f"only in the index: {shown(sorted(listed - names)) or 'nothing'}. "
                "Get the directory again."
            )
        for tensor, start in found.items():
            self.tensors[tensor.name] = tensor
            self._places[tensor.name] = (file_name, data_at + start)

    def _fill(self, file_name: str, offset: int, into: memoryview) -> None:
        file = self._opened(file_name)
        done = 0
        try:
            file.seek(offset)
            while done < len(into):
                count = file.readinto(into[done:])
                if not count:
                    break
                done += count
        except OSError as exc:
            raise DamagedFileError(
                f"{self.directory / file_name} cannot be read: {exc}. Check the disk."
            ) from exc
        if done < len(into):
            raise DamagedFileError(
                f"{self.directory / file_name} ends at byte {offset + done}, expected "
                f"{offset + len(into)}: it changed while it was read. Get the file again."
            )

    def _opened(self, file_name: str) -> FileIO:
        file = self._open.get(file_name)
        if file is None:
            if len(self._open) == _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
            try:
                file = FileIO(open_file(self.directory / file_name), "rb")
            except OSError as exc:
                raise ConfigError(f"{self.directory / file_name} cannot be opened: {exc}") from exc
            self._open[file_name] = file
        self._open.move_to_end(file_name)
        return file


def has_tensors(directory: Path, stem: str) -> bool:
    """True if there is something to open."""
    return any((directory / f"{stem}{suffix}").exists() for suffix in (SUFFIX, INDEX_SUFFIX))


def _files(directory: Path, stem: str) -> Mapping[str, set[str] | None]:
    """The files of a stem, and which tensors each must have; None: whatever it has."""
    single, index = directory / f"{stem}{SUFFIX}", directory / f"{stem}{INDEX_SUFFIX}"
    if single.exists() and index.exists():
        raise ConfigError(
            f"{directory} has both {single.name} and {index.name}; remove the one that is not meant"
        )
    if single.exists():
        return {single.name: None}
    if not index.exists():
        there = "" if directory.is_dir() else ", and no such directory"
        raise ConfigError(f"{directory}: there is neither {single.name} nor {index.name}{there}")
    try:
        document = parse_json(read_file(index, HEADER_BYTES_MAX))
        weight_map = document["weight_map"] if type(document) is dict else None
        if type(weight_map) is not dict:
            raise ValueError("it has no weight_map")
        files: dict[str, set[str] | None] = {}
        for name, file_name in weight_map.items():
            _check_file_name(file_name)
            listed = files.setdefault(file_name, set())
            assert listed is not None
            listed.add(name)
        if len(files) > SHARDS_MAX:
            raise ValueError(f"it names {len(files)} files, at most {SHARDS_MAX} are read")
    except (OSError, KeyError, ValueError) as exc:
        raise DamagedFileError(
            f"{index} is damaged or no index: {exc}. Get the file again."
        ) from exc
    for file_name in files:
        if not (directory / file_name).exists():
            raise ConfigError(f"{directory}: {index.name} names {file_name}, which is missing")
    return files


def _check_file_name(name: Any) -> None:
    """An index may name files beside it, and nothing else."""
    if (
        type(name) is not str
        or not name.endswith(SUFFIX)
        or name.startswith(".")
        or len(os.fsencode(name)) > _NAME_BYTES_MAX
        or any(character in name for character in "/\\\0")
    ):
        raise ValueError(f"{name!r:.120} is not the name of a {SUFFIX} file beside it")


SHOWN_MAX = 4


def check_tensors(
    found: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], *, place: str,
    dtypes: Collection[str], owner: str,
) -> None:  # fmt: skip
    """`wanted`: name -> shape. Raises ConfigError that lists the first few of each kind.

    `owner` is what wants them, for people: "the state".
    """
    both = [name for name in wanted if name in found]
    kinds = {
        "missing": [name for name in wanted if name not in found],
        f"not in {owner}": [name for name in found if name not in wanted],
        "of another shape": [
            f"{name} {list(found[name].shape)}, expected {list(wanted[name])}"
            for name in both
            if found[name].shape != wanted[name]
        ],
        f"neither of {', '.join(dtypes)}" if len(dtypes) > 1 else f"not {', '.join(dtypes)}": [
            f"{name} {found[name].dtype}" for name in both if found[name].dtype not in dtypes
        ],
    }
    lines = [f"{len(names)} {kind}: {shown(names)}" for kind, names in kinds.items() if names]
    if lines:
        raise ConfigError(
            f"{place} has other tensors than {owner}, so nothing was taken\n  " + "\n  ".join(lines)
        )


def shown(names: Collection[str]) -> str:
    """The first few of many names, for people."""
    first = [f"{name:.160}" for name in list(names)[:SHOWN_MAX]]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
