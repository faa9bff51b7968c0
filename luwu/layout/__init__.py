"""The place of every parameter: `layout.py`, of `parameters.py`. Integers only."""

from luwu.layout.layout import Chunk, Extent, Layout, Placement, Segment, segment_runs
from luwu.layout.parameters import COUNT_BYTES, DTYPE_BYTES, SUM_BYTES, Parameter, Unit, padded

__all__ = [
    "COUNT_BYTES",
    "DTYPE_BYTES",
    "SUM_BYTES",
    "Chunk",
    "Extent",
    "Layout",
    "Parameter",
    "Placement",
    "Segment",
    "Unit",
    "padded",
    "segment_runs",
]
