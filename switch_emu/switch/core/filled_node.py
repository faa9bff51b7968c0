"""A node that is being filled: how many of its extents count in each step. Pure.

Extents count in the order of their pages, in each step some more than in the one before: at least
one, and as many as may be copied in the time since. So a step waits for what is copied in it, and
the share of disks and links that copying takes is set by `bytes_per_s`.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from luwu.layout import Share
from luwu.protocol.outbox import Outbox
from luwu.wire.description import Description
from luwu.wire.stored import stored_bytes

STEP_MAX_S: Final = 60.0
"""Longer steps, and pauses between steps, count as this long: else the step after one would take
long too."""


class FilledNode:
    """See the module."""

    def __init__(
        self, outbox: Outbox, share: Share, filling: int, *, first_step: int,
        job: Description, bytes_per_s: float, since_ns: int,
    ) -> None:  # fmt: skip
        """`filling`: the number of its filling (`wire.Adopt.filling`); `first_step`: the first step
        that it takes part in, for which pages may be copied since `since_ns`."""
        self._outbox, self._bytes_per_s = outbox, bytes_per_s
        self.number, self.filling, self.first_step = share.number, filling, first_step
        extents = share.extents()
        self._places = {each.index: place for place, each in enumerate(extents)}
        self._bytes = [sum(stored_bytes(job, chunk) for chunk in each.chunks) for each in extents]
        self._chunks_to = [0, *accumulate(len(each.chunks) for each in extents)]
        """Chunks of so many extents."""
        self.chunks = [chunk for each in extents for chunk in each.chunks]
        """All chunks of the node, in the order of their pages."""
        self.state_bytes = sum(self._bytes)
        self.owns_pieces = 0 in share.stripes
        """It will keep what is attached to steps."""
        self._held: dict[int, int] = {}
        self._since_ns = since_ns

    def held(self, step: int) -> int:
        """How many extents count in a step; it stays so."""
        if step < self.first_step:
            return 0
        if step not in self._held:
            before = max(self._held.values(), default=0)
            self._held[step] = self._grown(before)
        return self._held[step]

    def holds(self, extent: int, step: int) -> bool:
        """True if an extent of the node counts in a step."""
        place = self._places.get(extent)
        return place is not None and place < self.held(step)

    def held_chunks(self, step: int) -> list[int]:
        """The chunks that count in a step."""
        return self.chunks[: self._chunks_to[self.held(step)]]

    def _grown(self, count: int) -> int:
        """So many extents count, and more."""
        now_ns = self._outbox.now_ns
        room = min((now_ns - self._since_ns) / 1e9, STEP_MAX_S) * self._bytes_per_s
        self._since_ns, first = now_ns, count
        while count < len(self._bytes) and (count == first or room >= self._bytes[count]):
            room -= self._bytes[count]
            count += 1
        return count
