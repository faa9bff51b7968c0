"""The form of a push of each extent; a push of another form is rejected. Pure.

A switch learns it from the job's description, as a node does. A push of another form is the fault
of its sender: it is rejected by name, before its bytes meet those of other ranks.
"""

from __future__ import annotations

from array import array

from luwu.aggregate import Aggregator
from luwu.aggregate.interface import ENCODED
from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.layout import Layout
from luwu.wire.messages import Push


class PushForm:
    """Sizes, dtypes and segments of the extents of one job."""

    def __init__(self, layout: Layout, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        extents = layout.extents
        self._elems = array("q", (each.elems if each.trainable else 0 for each in extents))
        """0: nothing of the extent is pushed."""
        self._segments = array("i", (layout.extent_segments_count(e.index) for e in extents))

    @property
    def extents_count(self) -> int:
        """Extents of the job, those that are never pushed included."""
        return len(self._elems)

    def fault(self, m: Push, payload_bytes: int, *, has_payload: bool) -> str:
        """The fault of a push: what was found, and what was expected; empty if there is none."""
        if m.index >= len(self._elems) or not self._elems[m.index]:
            return f"extent {m.index} is not one that is pushed; there are {len(self._elems)}"
        if not has_payload:
            return "segments are absent from a push without a payload" if m.absent else ""
        return self._fault_of_bytes(m, payload_bytes) or self._fault_of_segments(m)

    def _fault_of_bytes(self, m: Push, payload_bytes: int) -> str:
        elems, aggregator = self._elems[m.index], self._aggregator
        if aggregator.is_plain:
            expected = elems * DTYPES[m.dtype].nbytes if m.dtype in WIRE_DTYPES else 0
            if m.dtype not in WIRE_DTYPES or payload_bytes != expected:
                return (
                    f"extent {m.index} has {elems} elements, and a push of it {payload_bytes} "
                    f"bytes of {m.dtype}, expected {expected}"
                )
        elif m.dtype != ENCODED or not aggregator.fits(elems, payload_bytes):
            return (
                f"extent {m.index}: {payload_bytes} bytes of {m.dtype} are not {elems} elements as "
                f"{aggregator.name} encodes them"
            )
        return ""

    def _fault_of_segments(self, m: Push) -> str:
        count = self._segments[m.index]
        if m.absent and m.absent >= (1 << count) - 1:
            return (
                f"extent {m.index} has {count} segments, and a push of it lacks {m.absent:#b}; one "
                "that lacks all of them has no payload"
            )
        return ""
