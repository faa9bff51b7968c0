"""Where a page's new weights are written for those who pull them: in place, or a copy."""

from __future__ import annotations

from switch_emu.node.places import WeightsPlaces
from switch_emu.process.payload import Buffers, Payload


class Outgoing:
    """Where weights are written that go out: their place in shared memory, or a copy's."""

    def __init__(
        self, places: WeightsPlaces | None, buffers: Buffers, chunk: int, step: int, attempt: int,
        *, dtype: str, nbytes: int,
    ) -> None:  # fmt: skip
        """`nbytes`: of the copy, where the place is not to be had; 0: then none is made."""
        self._places, self._key = places, (chunk, step, attempt)
        place = None if places is None else places.claim(chunk, step, attempt)
        self.is_in_place = place is not None
        self._payload: Payload | None = None
        if place is None and nbytes:
            place, self._payload = buffers.take(nbytes)
        self.target: tuple[memoryview, str] | None = None if place is None else (place, dtype)

    def written(self) -> Payload | None:
        """The weights as a payload; None if nobody needed them."""
        if self.is_in_place:
            assert self._places is not None
            return self._places.fill(*self._key)
        return self._payload

    def given_up(self) -> None:
        """Nothing was written, or nothing that counts."""
        if self.is_in_place:
            assert self._places is not None
            self._places.give_up(*self._key[:2])
        elif self._payload is not None:
            self._payload.drop()
