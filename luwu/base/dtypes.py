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
    numpy: str = ""
    """The NumPy type that holds it, for bfloat16 that of its bits; empty: no value is looked at."""
    number: int = -1
    """Its number in the compiled library; see `switch_emu/native/arithmetic.c`."""


DTYPES: Final = {
    "float32": Dtype(4, "float32", number=0),
    "bfloat16": Dtype(2, "uint16", number=1),
    "float16": Dtype(2, "float16", number=2),
    "int8": Dtype(1, "int8", number=3),
    "uint8": Dtype(1, "uint8", number=4),
    "int64": Dtype(8, "int64"),
}

WIRE_DTYPES: Final = ("float32", "bfloat16", "float16")
"""Dtypes of compute and transfer; sums are float32."""
STATE_DTYPES: Final = ("float32", "bfloat16", "int8")
"""Dtypes in which a page keeps moments; int8 by blocks, each with a scale."""
MASTER_DTYPES: Final = ("float32", "bfloat16")
"""Dtypes in which a page keeps master weights."""
PAGE_DTYPES: Final = ("float32", "bfloat16", "int8", "uint8", "int64")
"""Dtypes of the fields of a page: uint8 of moments that are never negative, int64 of counts."""
