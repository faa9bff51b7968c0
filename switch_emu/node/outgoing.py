"""Memory for a page's new weights: their place in shared memory, or a copy to send."""

from __future__ import annotations

from luwu.wire.altered import checksum_of
from switch_emu.process.payload import Buffers, Payload
from switch_emu.process.places import WeightsPlaces


class Outgoing:
    """Memory for outgoing weights: their place in shared memory, or a copy."""

    def __init__(
        self, places: WeightsPlaces | None, buffers: Buffers, extent: int, step: int, attempt: int,
        *, dtype: str, nbytes: int, is_checked: bool = False,
    ) -> None:  # fmt: skip
        """`nbytes`: size of the copy, if the place is not free; 0: no copy. `is_checked`: who
        receives them can find out whether they are what was written."""
        self._is_checked = is_checked
        self._places, self._key = places, (extent, step, attempt)
        place = None if places is None else places.claim(extent, step, attempt)
        self.is_in_place = place is not None
        self._payload: Payload | None = None
        if place is None and nbytes:
            place, self._payload = buffers.take(nbytes)
        self.target: tuple[memoryview, str] | None = None if place is None else (place, dtype)

    def written(self) -> Payload | None:
        """The written weights as a payload; None without place and copy."""
        if self.is_in_place:
            assert self._places is not None
            return self._places.fill(*self._key)
        if self._payload is not None and self._is_checked:
            self._payload.checksum = checksum_of(self._payload.view())
        return self._payload

    def given_up(self) -> None:
        """Release the memory; the weights are void."""
        if self.is_in_place:
            assert self._places is not None
            self._places.give_up(*self._key[:2])
        elif self._payload is not None:
            self._payload.drop()
