"""Weights in the memory of a switch: pulled once, for all uses of a step. Pure.

A unit is pulled for forward and for backward, of every micro-batch. Of some extents, chosen once,
the switch caches the weights of the newest step, and answers all pulls but the first itself. It
asks for those of the next step before their pages are updated: when a child has pushed a gradient
of the unit, or, where pages are updated after the last one (`at_step`), when the step has its
verdict. Then the node sends them as it updates a page, and need not read them again.

    -> cached     `Cache`      the weights of a step came
    -> newer      `Cache`      those of the next step came: all children have pushed, so none will
                               ask for the older ones, and if one does, it is asked for again
    -> dropped    `forget`     the step was decided, and the weights are those of before; or a new
                               attempt began: what streamed ahead of a decision is void

Weights that are frozen are those of every step of an attempt.

The last extents are chosen: a node keeps the first pages in its RAM (`store/tier.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.layout import Layout
from luwu.protocol.actions import Payload
from luwu.wire.description import Description
from switch_emu.switch.core.actions import Cache


@dataclass(frozen=True, slots=True)
class Cached:
    """The weights of one extent."""

    step: int
    dtype: str
    payload: Payload
    payload_bytes: int
    in_place: bool
    """True if children may use them where they lie."""


class WeightsCache:
    """The weights of the chosen extents, as far as they are here."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chosen: frozenset[int] = frozenset()
        self._frozen: frozenset[int] = frozenset()
        self._ahead: dict[int, tuple[int, ...]] = {}
        """Trained extents -> the chosen ones of their unit, if pages are updated one by one."""
        self._cached: dict[int, Cached] = {}
        self.layout: Layout | None = None
        """The job's, if the weights of all its extents are cached; else None."""
        self.bytes_used = 0
        self.hits_count = 0
        """Pulls of an extent that were answered from here."""

    def learn(self, job: Description) -> None:
        """Choose the extents of a job's model."""
        layout = job.layout
        self._chosen = chosen_extents(layout, self._bytes_max)
        self.layout = layout if len(self._chosen) == len(layout.extents) else None
        frozen = {each.index for each in layout.extents if not each.trainable}
        self._frozen = self._chosen & frozen
        if job.update != "streaming":
            return
        for extents in layout.unit_extents:
            trained = [index for index in extents if index not in frozen]
            chosen = tuple(index for index in trained if index in self._chosen)
            self._ahead.update(dict.fromkeys(trained, chosen))

    @property
    def trained(self) -> tuple[int, ...]:
        """The chosen extents whose weights change, in order."""
        return tuple(sorted(self._chosen - self._frozen))

    def get(self, step: int, extent: int) -> Cached | None:
        """The weights of an extent for a step, if they are here."""
        found = self._cached.get(extent)
        if found is None or (found.step != step and extent not in self._frozen):
            return None  # what is frozen is the same in all steps
        return found

    def wants(self, step: int, extent: int) -> bool:
        """True if weights of a step that came should be cached."""
        found = self._cached.get(extent)
        if found is None:
            return extent in self._chosen
        return found.step < step and extent not in self._frozen

    def after_push(self, extent: int) -> tuple[int, ...]:
        """The extents to ask for, of the next step, when a gradient of this one was pushed."""
        return self._ahead.get(extent, ())

    def put(
        self, done: Cache, payload: Payload, payload_bytes: int, *, in_place: bool = False
    ) -> Payload | None:  # fmt: skip
        """Weights were copied here; returns those that they replace."""
        former = self._take(done.extent)
        self._cached[done.extent] = Cached(done.step, done.dtype, payload, payload_bytes, in_place)
        self.bytes_used += payload_bytes
        return former

    def forget(self, step: int | None = None) -> list[Payload]:
        """Drop the weights of a decided step; without one, all. Returns payloads to drop."""
        over = [
            extent
            for extent, cached in self._cached.items()
            if step is None or (cached.step <= step and extent not in self._frozen)
        ]
        return [payload for extent in over if (payload := self._take(extent)) is not None]

    def close(self) -> None:
        """Cache no more: children read the weights where the node has them."""
        self._chosen = frozenset()
        self._ahead.clear()

    def _take(self, extent: int) -> Payload | None:
        former = self._cached.pop(extent, None)
        if former is None:
            return None
        self.bytes_used -= former.payload_bytes
        return former.payload


def chosen_extents(layout: Layout, bytes_max: int) -> frozenset[int]:
    """The extents whose weights a cache of so many bytes holds."""
    chosen: list[int] = []
    left = bytes_max
    for extent in reversed(layout.extents):
        if extent.wire_bytes <= left:
            chosen.append(extent.index)
            left -= extent.wire_bytes
    return frozenset(chosen)
