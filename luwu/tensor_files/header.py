"""The header of a safetensors file: where each tensor's bytes lie.

    u64 little-endian   bytes of the header
    JSON                {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    data                row by row, little-endian; offsets count from here

`__metadata__` maps texts to texts. Tensors cover the data exactly: no hole, no overlap, nothing
behind the last. A header that says anything else is rejected as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from luwu.base.dtypes import DTYPES, OF_FILES
from luwu.base.errors import DamagedFileError
from luwu.base.foreign import parse_json
from luwu.base.limits import INT64_MAX

LENGTH_BYTES: Final = 8
HEADER_BYTES_MAX: Final = 16 * 1024 * 1024
"""About 150,000 tensors. The library allows 100 MB, which would cost us ten times that in RAM."""
DIMENSIONS_MAX: Final = 64
_ALIGN_BYTES: Final = 64
_METADATA: Final = "__metadata__"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Name, dtype and shape of a tensor."""

    name: str
    dtype: str
    """Dtype as the format spells it: `F32`."""
    shape: tuple[int, ...]

    @property
    def elem_bytes(self) -> int:
        """Bytes of one element."""
        return DTYPES[OF_FILES[self.dtype]].nbytes

    @property
    def elems(self) -> int:
        """Number of elements; 1 of a scalar."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.elems * self.elem_bytes


def encode_header(tensors: Sequence[Tensor]) -> bytes:
    """The start of a file that holds these tensors in this order, up to the data.

    The data starts on a multiple of 64 bytes; `format: pt` is what transformers asks for.
    """
    document: dict[str, Any] = {_METADATA: {"format": "pt"}}
    at = 0
    for tensor in tensors:
        document[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    whole = -(-(LENGTH_BYTES + len(text)) // _ALIGN_BYTES) * _ALIGN_BYTES
    text = text.ljust(whole - LENGTH_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def parse_header(text: bytes, data_bytes: int, *, place: str) -> dict[Tensor, int]:
    """Each tensor and its first byte in the data. Raises DamagedFileError if the header lies."""
    try:
        document = parse_json(text)
        if type(document) is not dict:
            raise ValueError("it is not a JSON object")
        _check_metadata(document.pop(_METADATA, {}))
        entries = [_entry(name, item) for name, item in document.items()]
        found = sorted(entries, key=lambda entry: entry[1:])
        at = 0
        for tensor, start, stop in found:
            if start != at:
                what = "overlaps another" if start < at else "leaves a hole before it"
                raise ValueError(f"tensor {tensor.name!r:.80} {what}")
            at = stop
        if at != data_bytes:
            raise ValueError(f"its tensors take {at} bytes, {data_bytes} follow the header")
    except ValueError as exc:
        raise DamagedFileError(
            f"{place}: the safetensors header is damaged or not one: {exc}. Get the file again."
        ) from exc
    return {tensor: start for tensor, start, _ in found}


def _check_metadata(metadata: Any) -> None:
    is_text = type(metadata) is dict and all(type(value) is str for value in metadata.values())
    if not is_text:
        raise ValueError(f"{_METADATA} is not a map of texts")


def _entry(name: str, item: Any) -> tuple[Tensor, int, int]:
    if type(item) is not dict or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r:.80} has not exactly dtype, shape and data_offsets")
    name.encode()  # JSON can spell half a character, which no message of ours could carry
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if type(dtype) is not str or dtype not in OF_FILES:
        raise ValueError(f"tensor {name!r:.80} has the unknown dtype {dtype!r:.40}")
    if not _are_naturals(shape) or len(shape) > DIMENSIONS_MAX:
        raise ValueError(f"tensor {name!r:.80} has the shape {shape!r:.80}")
    if not _are_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {name!r:.80} has the data_offsets {offsets!r:.80}")
    tensor = Tensor(name, dtype, tuple(shape))
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise ValueError(
            f"tensor {name!r:.80}, {dtype} {shape!r:.80}, has {offsets[1] - offsets[0]} bytes"
        )
    return tensor, offsets[0], offsets[1]


def _are_naturals(values: Any) -> bool:
    return type(values) is list and all(
        type(value) is int and 0 <= value <= INT64_MAX for value in values
    )
