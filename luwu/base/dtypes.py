"""Every dtype that is known here: its names, its bytes, and where it may be used.

In messages, descriptions of jobs and stores a dtype is called what torch calls it, so
`getattr(torch, name)` is torch's. A new one is a row here, and a name in the lists of its uses.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Dtype(NamedTuple):
    """What must be known of a dtype."""

    nbytes: int
    """Bytes of one element."""
    in_files: str
    """Its name in safetensors files."""
    numpy: str = ""
    """The NumPy type that holds it, for bfloat16 that of its bits; empty: no value is looked at."""
    number: int = -1
    """Its number in the compiled library; see `switch_emu/native/arithmetic.c`."""


DTYPES: Final = {
    "float32": Dtype(4, "F32", "float32", number=0),
    "bfloat16": Dtype(2, "BF16", "uint16", number=1),
    "float16": Dtype(2, "F16", "float16", number=2),
    "int8": Dtype(1, "I8", "int8", number=3),
    "uint8": Dtype(1, "U8", "uint8", number=4),
    "int64": Dtype(8, "I64", "int64"),
    "bool": Dtype(1, "BOOL"),
    "float8_e4m3fn": Dtype(1, "F8_E4M3"),
    "float8_e5m2": Dtype(1, "F8_E5M2"),
    "float8_e8m0fnu": Dtype(1, "F8_E8M0"),
    "int16": Dtype(2, "I16"),
    "uint16": Dtype(2, "U16"),
    "int32": Dtype(4, "I32"),
    "uint32": Dtype(4, "U32"),
    "uint64": Dtype(8, "U64"),
    "float64": Dtype(8, "F64"),
    "complex64": Dtype(8, "C64"),
}
OF_FILES: Final = {each.in_files: name for name, each in DTYPES.items()}
"""The name of a dtype by its name in files: what a file may hold."""

COMPUTE_DTYPES: Final = ("float32", "bfloat16")
"""Dtypes in which the built-in models compute."""
WIRE_DTYPES: Final = ("float32", "bfloat16", "float16")
"""Dtypes of compute and transfer, and of exported weights; sums are float32."""
STATE_DTYPES: Final = ("float32", "bfloat16", "int8")
"""Dtypes in which a page keeps moments; int8 by blocks, each with a scale."""
MASTER_DTYPES: Final = ("float32", "bfloat16")
"""Dtypes in which a page keeps master weights."""
PAGE_DTYPES: Final = ("float32", "bfloat16", "int8", "uint8", "int64")
"""Dtypes of the fields of a page: uint8 of moments that are never negative, int64 of counts."""
BUFFER_DTYPES: Final = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip
"""Dtypes in which files may hold a model's buffers."""
