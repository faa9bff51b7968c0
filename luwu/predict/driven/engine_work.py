"""The work of a node whose hosts are not here: drives and memory of the catalogue.

Drives read and write at once, memory does one thing at a time. A page is read, passed over by the
update and written; a fold passes over what came and over the sum; a gradient for which there is no
room goes to drives, and is read back by its update or fold. The pages of an extent take their turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import simpy

from luwu.base.errors import ConfigError
from luwu.layout import SUM_BYTES
from luwu.predict.driven.engines import Engine, Fields, Process, Record
from luwu.predict.driven.links import Token
from luwu.predict.hardware.hosts import STATE_BYTES, adam_bytes
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.systems.in_network import DMA, OptimizerNodes
from luwu.wire.description import Description
from switch_emu.node.core import actions as do


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCosts:
    """Costs of the engines of all nodes together; nodes are equal, so one stands for all."""

    read_s: float
    """To read a byte from drives; NaN where there are none."""
    write_s: float
    memory_s: float
    """To pass over a byte of memory."""
    away: float
    """Share of the state on drives."""
    parameter_bytes: float = STATE_BYTES
    """State of a parameter, wherever it is."""

    @staticmethod
    def of(nodes: OptimizerNodes) -> NodeCosts:
        """Costs on hosts of the catalogue. Raises ConfigError for a state on drives without any."""
        away = 1 - nodes.cached
        has_drives = away > 0 or nodes.host.disks > 0
        return NodeCosts(
            read_s=nodes.host.read(1.0) / nodes.nodes if has_drives else math.nan,
            write_s=nodes.host.write(1.0) / nodes.nodes if has_drives else math.nan,
            memory_s=1 / (nodes.host.memory_rate * nodes.nodes),
            away=away,
            parameter_bytes=nodes.state_bytes,
        )  # fmt: skip

    @property
    def state_bytes(self) -> float:
        """Bytes of a parameter on drives."""
        return self.parameter_bytes * self.away

    @property
    def update_bytes(self) -> float:
        """Memory traffic of the update of a parameter, reads of the gradient included."""
        return adam_bytes(self.parameter_bytes) + 2 * DMA * self.state_bytes


class _Page(NamedTuple):
    """A page of an extent."""

    chunk: int
    elems: int
    """Parameters that it stands for."""
    share: float
    """Share of the extent's payload that belongs to the page."""

    def about(self, step: int) -> Fields:
        return (("step", step), ("chunk", self.chunk))


class EngineWork:
    """Drives and memory; `scale` is how many parameters each element of the layout stands for.

    Each method is yielded from a process, by one of the node's threads.
    """

    def __init__(
        self, env: simpy.Environment, record: Record, *, description: Description,
        costs: NodeCosts, scale: int, sum_bytes_max: int,
    ) -> None:  # fmt: skip
        self._env, self._layout = env, description.layout
        self._streaming = description.update == "streaming"
        self._costs, self._scale, self._sum_bytes_max = costs, scale, sum_bytes_max
        self._read = Engine(env, record, "disk read")
        self._write = Engine(env, record, "disk write")
        self._memory = Engine(env, record, "node memory")

    def update(self, action: do.Update) -> Process:
        *pages, last = self._pages(action.extent)
        for page in pages:
            yield from self._update_page(action, page)
            yield from self._write_page(action, page)
        yield from self._update_page(action, last)

    def write(self, action: do.Update) -> Process:
        yield from self._write_page(action, self._pages(action.extent)[-1])

    def _update_page(self, action: do.Update, page: _Page) -> Process:
        about = page.about(action.step)
        yield from self._read_back(action.contributions, page, about)
        nbytes = page.elems * self._costs.state_bytes
        if nbytes:
            yield from self._read.work("state", nbytes * self._costs.read_s, nbytes, about)
        passed = page.elems * self._costs.update_bytes
        passed += _arrived_bytes(action.contributions, page) if self._streaming else 0
        passed += page.elems * WIRE_BYTES if action.publish else 0
        yield from self._pass("update", passed, about)

    def _write_page(self, action: do.Update, page: _Page) -> Process:
        nbytes, about = page.elems * self._costs.state_bytes, page.about(action.step)
        if nbytes:
            yield from self._write.work("state", nbytes * self._costs.write_s, nbytes, about)

    def fold(self, action: do.Fold) -> Process:
        before = () if action.total is None else (action.total,)
        for page in self._pages(action.extent):
            about = page.about(action.step)
            yield from self._read_back((*action.contributions, *before), page, about)
            passed = float(2 * _arrived_bytes(action.contributions, page))
            passed += page.elems * SUM_BYTES * (1 + len(before))
            yield from self._pass("fold", passed, about)

    def read_weights(self, action: do.ReadWeights) -> Process:
        for page in self._pages(action.extent):
            about = page.about(action.step)
            yield from self._pass("read_weights", page.elems * WIRE_BYTES, about)

    def flush(self, action: do.Prepare | do.Decide) -> Process:
        if isinstance(action, do.Prepare):
            yield self._env.timeout(0.0)  # the catalogue's drives do not say what a flush takes

    def spill(self, payload: Token) -> Process:
        if math.isnan(self._costs.write_s):
            raise ConfigError(
                "node.disks: gradients that wait for their update take more than the "
                f"{self._sum_bytes_max / 2**20:,.0f} MiB that the node plans for them, and it has "
                "no drives for the rest; give disk and disks, or more memory"
            )
        nbytes = payload.cost_bytes
        yield from self._write.work("spill", nbytes * self._costs.write_s, nbytes)

    def cost_bytes(self, extent: int, nbytes: int) -> float:
        return nbytes * self._scale

    def _pages(self, extent: int) -> list[_Page]:
        found = self._layout.extents[extent]
        return [
            _Page(index, elems * self._scale, elems / found.elems)
            for index in found.chunks
            for elems in (self._layout.chunks[index].elems,)
        ]

    def _read_back(self, contributions: Sequence[Any], page: _Page, about: Fields) -> Process:
        spilled = [each for each in contributions if each.payload.is_spilled]
        nbytes = _arrived_bytes(spilled, page)
        if nbytes:
            yield from self._read.work("spill", nbytes * self._costs.read_s, nbytes, about)

    def _pass(self, job: str, nbytes: float, about: Fields) -> Process:
        yield from self._memory.work(job, nbytes * self._costs.memory_s, nbytes, about)


def _arrived_bytes(contributions: Sequence[Any], page: _Page) -> float:
    """Received bytes of a page that were written to memory on arrival."""
    return sum(each.payload.cost_bytes for each in contributions) * page.share
