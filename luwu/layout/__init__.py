"""The place of all parameters: `layout.py`, `parameters.py`, `share.py`, `places.py`. Integers."""

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
from luwu.layout.places import PlacesMap
from luwu.layout.share import Share, check_replicas, owners_of, stripes_of

__all__ = [
    "ALL_FLOAT32", "COUNT_BYTES", "SUM_BYTES", "Chunk", "Extent", "Layout", "Parameter",
    "Placement", "PlacesMap", "Segment", "Share", "StoredForm", "Unit", "check_replicas",
    "owners_of", "padded", "segment_runs", "stripes_of",
]  # fmt: skip
