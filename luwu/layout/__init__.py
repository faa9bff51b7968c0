"""The place of every parameter: `layout.py`, of `parameters.py`; and `share.py`. Integers only."""

from luwu.layout.layout import Chunk, Extent, Layout, Placement, Segment, segment_runs
from luwu.layout.parameters import (
    ALL_FLOAT32,
    COUNT_BYTES,
    SUM_BYTES,
    Parameter,
    StoredForm,
    Unit,
    padded,
)
from luwu.layout.share import Share, check_replicas, owners_of, stripes_of

__all__ = [
    "ALL_FLOAT32", "COUNT_BYTES", "SUM_BYTES", "Chunk", "Extent", "Layout", "Parameter",
    "Placement", "Segment", "Share", "StoredForm", "Unit", "check_replicas", "owners_of", "padded",
    "segment_runs", "stripes_of",
]  # fmt: skip
