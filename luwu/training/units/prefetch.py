"""Pulls ahead of use, in the order in which the last step used its units.

A step uses a unit by pulling it: in forward and, if it was freed, again in backward. `Prefetcher`
writes down the order and, in the next step, keeps `window` pulls under way beyond the unit that is
used. When a unit is wanted that the order did not foresee, the pulls that were not used are given
up first, so that the memory bound holds; then the order is taken up again at that unit.

At most `window` units are pulled and unused, one is used and the root stays: `(window + 2)` units,
or all of them where they stay until backward. What the script asks for by hand comes on top of
that. Memory that a step has had once is not left empty later: where it has room, pulls run further
ahead, and while a streaming backward ends, into the next step. So what the network brings for the
next forward travels beside the last gradients.

Units whose weights are used in memory shared with their sender take none of ours, and are mostly
there (`luwu/nic/board.py`). They are asked for as they are used; and all that follow, once one has
to be waited for. (The first of a step does not count: it waits for the verdict before.)
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from luwu.base.clock import SYSTEM_CLOCK
from luwu.nic.shell import Nic
from luwu.nic.threads import Handle
from luwu.training.units.unit import Unit


@dataclass(slots=True)
class _Pull:
    handle: Handle
    unit: Unit
    step: int
    by_hand: bool
    """The script asked for it: only the script gives it up."""
    is_fetched: bool = False
    """`UnitWeights.fetch` was called."""


class Prefetcher:
    """Asks for weights; `units` are those of the layout, by index."""

    def __init__(
        self, nic: Nic, units: list[Unit], *, window: int, streaming: bool, step: int
    ) -> None:
        self._nic = nic
        self._units = units
        self._window = window
        self._streaming = streaming
        self._step = step
        self._order: list[int] = []
        """Uses of the last step."""
        self._cursor = 0
        """Position of the next unit in the order."""
        self._record: list[int] = []
        self._record_has_backward = False
        self._pulls: dict[int, _Pull] = {}
        """Pulls asked for and not used, by unit."""
        self._bytes = self._bytes_peak = 0
        """Bytes of the units that are used or asked for: now, and the most so far."""
        self.use_count = 0
        self.early_count = 0
        """Uses whose weights had come before they were needed."""

    def use(self, unit: Unit) -> None:
        """Return when the unit's weights are in its storage."""
        index, weights, pull = unit.index, unit.weights, None
        self._record.append(index)
        if weights.shared is None:  # else they are here, for the whole step
            pull = self._pulls.get(index)
            if pull is None or pull.step != self._step:
                if weights.memory_bytes:  # else it takes no room of theirs
                    self._forget([p for p in self._pulls.values() if not p.by_hand])
                weights.prepare(wait=True)
                pull = self._ask(unit)
        self._cursor = self._after(index)
        is_early = pull is None or pull.handle.done
        self.use_count += 1
        self.early_count += is_early
        self.top_up(wanted=index, is_late=not is_early and len(self._record) > 1)
        if pull is None:
            return
        if not is_early:
            start_ns = SYSTEM_CLOCK.now_ns()
            self._nic.wait(pull.handle)
            end_ns = SYSTEM_CLOCK.now_ns()
            self._nic.recorder.span("pull_wait", start_ns, end_ns, step=self._step, unit=unit.name)
        del self._pulls[index]
        unit.uses += 1
        self._bytes -= weights.memory_bytes
        weights.publish(pull.handle.shared)
        self._bytes += weights.memory_bytes
        if not is_early:
            self._fetch_arrived()

    def freed(self, unit: Unit) -> None:
        """A unit that was used is not here any more."""
        self._bytes -= unit.weights.memory_bytes
        self.top_up()

    def top_up(self, wanted: int = -1, *, is_late: bool = False) -> None:
        """Ask for what comes next, as far as there is room. `is_late`: `wanted` is not here yet."""
        self._fetch_arrived()
        under_way = 0
        for index, pull in self._pulls.items():
            if index != wanted and not pull.by_hand and pull.unit.weights.memory_bytes:
                under_way += 1
        foreseen = {wanted}
        for index in self._order[self._cursor :]:
            unit = self._units[index]
            weights = unit.weights
            if weights.shared is not None:
                continue  # for the whole step
            if index in foreseen or unit.is_installed:
                break  # a unit that is here must be used and freed before it is pulled again
            if self._streaming and unit.was_pushed:
                break
            foreseen.add(index)
            if index in self._pulls or not (weights.memory_bytes or is_late):
                continue
            if weights.memory_bytes:
                if under_way >= self._window and not self._has_room(unit):
                    break
                under_way += 1
            if not weights.prepare(wait=False):
                break  # the next look will find more
            self._ask(unit)
        else:
            if self._streaming:
                self._begin_next_step()
        self._bytes_peak = max(self._bytes_peak, self._bytes)

    def _begin_next_step(self) -> None:
        """Ask for what the next step uses first, of units whose part in this one is over."""
        for index in self._order if self._record_has_backward else ():
            unit = self._units[index]
            if unit.is_installed or index in self._pulls or unit.weights.shared is not None:
                continue
            is_over = unit.was_pushed or not unit.is_trainable
            may_ask = is_over and unit.weights.memory_bytes > 0 and self._has_room(unit)
            if not (may_ask and unit.weights.prepare(wait=False)):
                return
            self._ask(unit, is_next=True)

    def _has_room(self, unit: Unit) -> bool:
        """True if its weights fit into what weights have taken before; without a window, never."""
        return self._window > 0 and self._bytes + unit.nbytes <= self._bytes_peak

    def prefetch(self, units: Sequence[Unit]) -> None:
        """Ask for these by hand, beyond the window, as far as there is room for them."""
        for unit in units:
            needs_none = unit.index < 0 or unit.is_installed or unit.weights.shared is not None
            if needs_none or unit.index in self._pulls or (self._streaming and unit.was_pushed):
                continue
            if unit.weights.prepare(wait=False):
                self._ask(unit, by_hand=True)

    def forget(self, unit: Unit) -> None:
        """Give up the pull of a unit, if there is one that was not used."""
        self._forget([pull for pull in self._pulls.values() if pull.unit is unit])

    def begin_forward(self, model: Container[int]) -> None:
        """A root begins a forward: one that no backward follows is not worth remembering.

        `model`: the units below it. Those of a model beside it are used for this step's backward.
        """
        if not self._record_has_backward:
            self._record = [index for index in self._record if index not in model]

    def begin_backward(self) -> None:
        """A backward begins."""
        self._record_has_backward = True

    def next_step(self, step: int) -> None:
        """The step is committed: foresee the next one as this one was."""
        if self._record_has_backward:
            self._order = self._record
        self._rewind(step)
        self.top_up()

    def restart(self, step: int) -> None:
        """The step was lost: its weights are given up, the order of the last whole one holds."""
        self.forget_all()
        self._rewind(step)

    def forget_unused(self) -> None:
        """Give up what was asked for in this step and not used."""
        self._forget([pull for pull in self._pulls.values() if pull.step == self._step])

    def forget_all(self) -> None:
        """Give up every pull that was not used."""
        self._forget(list(self._pulls.values()))

    def _forget(self, pulls: Sequence[_Pull]) -> None:
        for pull in pulls:
            try:
                self._nic.forget(pull.handle)
            finally:
                del self._pulls[pull.unit.index]
                self._bytes -= pull.unit.weights.memory_bytes
                pull.unit.weights.free()

    def _fetch_arrived(self) -> None:
        for pull in self._pulls.values():
            if pull.handle.done and not pull.is_fetched:
                pull.is_fetched = True
                pull.unit.weights.fetch(pull.handle.shared)

    def _rewind(self, step: int) -> None:
        """Everything that was used is let go."""
        self._bytes = sum([pull.unit.weights.memory_bytes for pull in self._pulls.values()])
        self._step = step
        self._record = []
        self._record_has_backward = False
        self._cursor = 0

    def _ask(self, unit: Unit, *, by_hand: bool = False, is_next: bool = False) -> _Pull:
        step, use = self._step + is_next, 0 if is_next else unit.uses
        in_place = unit.weights.may_be_shared(next_step=is_next)
        handle = self._nic.pull(step, use, unit.index, unit.weights.open, in_place=in_place)
        pull = self._pulls[unit.index] = _Pull(handle, unit, step, by_hand)
        self._bytes += unit.weights.memory_bytes
        return pull

    def _after(self, index: int) -> int:
        """The place in the order after this use; its end if it was never seen."""
        for start in (self._cursor, 0):
            try:
                return self._order.index(index, start) + 1
            except ValueError:
                continue
        return len(self._order)
