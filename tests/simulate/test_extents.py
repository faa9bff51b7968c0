"""Chunks that travel together, in histories: as one message, one sum and one update, or as none.

The oracles check the bits of the plain loop, which knows no extents, and that a page is written
once, and all pages of an extent under one attempt (O3). Of all histories of
`test_histories.py`, half have extents of several chunks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.wire import messages as wire
from switch_emu.node.core import actions as node_actions
from switch_emu.node.extent_pages import PageGroup, extent_pages
from tests.simulate.cluster import Cluster
from tests.simulate.disk import Summed
from tests.simulate.faults import Cancel, Crash, DieInStore, Fault, Noise, PowerCut, Zombie
from tests.simulate.history import Simulation, run_history
from tests.simulate.job import Job, make_layout
from tests.simulate.machines import Node
from tests.simulate.plan import History, Options, make_history
from tests.simulate.world import Faults

ORDERED = Faults(is_ordered=True)
UPDATES = ["streaming", "at_step"]


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("optimizer_nodes", [1, 2])
def test_norms_do_not_depend_on_extents(update: str, optimizer_nodes: int) -> None:
    """I3. Goal: however many chunks travel together, all norms and weights are the same bits, and
    fewer messages carry them."""
    norms, digests, pushes = [], set(), []
    for extent_chunks in (1, 2, 3, 100):
        layout = make_layout(optimizer_nodes=optimizer_nodes, rows=260, extent_chunks=extent_chunks)
        cluster = Cluster(0, Job(layout, update=update), ORDERED)
        count = 0

        def heard(sender: str, receiver: str, m: object, payload: object) -> None:
            nonlocal count
            count += isinstance(m, wire.Push) and sender.startswith("worker")

        cluster.world.eavesdropper = heard
        digests.add(cluster.run_to_the_end())
        norms.append([cluster.workers[0].decided[step].norms for step in range(4)])
        pushes.append(count)
    assert norms == [norms[0]] * 4
    assert len(digests) == 1
    assert pushes == sorted(pushes, reverse=True)
    assert len(set(pushes)) == 4


IN_THE_MIDDLE: tuple[Fault, ...] = (
    Cancel(at_ms=120, who="worker 0"),
    Crash(at_ms=150, for_ms=50, who="worker 1"),
    Crash(at_ms=150, for_ms=50, who="switch 0"),
    PowerCut(at_ms=150, for_ms=50, who="node 0"),
    Zombie(at_ms=120, for_ms=100, who="node 0"),
    *(
        DieInStore(at_ms=100, for_ms=50, who="node 0", failpoints=number, power_cut=True)
        for number in (0, 1, 2, 3, 5, 8)
    ),
)


@pytest.mark.parametrize("fault", IN_THE_MIDDLE, ids=repr)
@pytest.mark.parametrize("update", UPDATES)
def test_an_end_between_two_pages_of_an_extent(update: str, fault: Fault) -> None:
    """O1 to O6. Goal: what was written of an extent whose attempt was given up, or whose node ended
    between two of its pages, does not count. Method: units of seven chunks that travel as one; a
    real store, and one fault on a rough network and on a quiet one."""
    noise = Noise(at_ms=0, for_ms=5000, drop_percent=5, repeat_percent=10, delay_ms=5)
    options = Options(
        update=update, stored=True, rows=260, extent_chunks=100, steps=4, poison_step=2, keeps=True
    )
    for faults in ((fault,), (noise, fault)):
        simulation = run_history(History(5, options, faults))
        assert simulation.counts[type(fault).__name__] == 1


def test_about_half_of_all_histories_have_extents() -> None:
    """Goal: of the options drawn, extents of one chunk, of several, and of whole units; never where
    they cannot be."""
    options = [make_history(seed).options for seed in range(400)]
    counts = [sum(each.extent_chunks == count for each in options) for count in (1, 2, 3, 4, 100)]
    assert 160 <= counts[0] <= 240
    assert all(count > 20 for count in counts[1:])
    several = [each for each in options if each.extent_chunks > 1]
    assert all(each.slot_count is None and each.aggregate == "float32" for each in several)
    assert {each.optimizer_nodes for each in several} == {1, 2, 3}
    assert any(each.tree for each in several)
    slotted = [make_history(seed, slot_count=2) for seed in range(20)]
    assert all(each.options.job().layout.extent_chunks == 1 for each in slotted)


class Forgetful(Node):
    """Writes the last page of an extent, and not the one before it."""

    def _write(
        self, chunk: int, version: int, attempt: int, weights: object, momentum: object,
        summed: Summed | None = None,
    ) -> None:  # fmt: skip
        pages = next(e.chunks for e in self._job.layout.extents if chunk in e.chunks)
        if version == 0 or chunk not in pages[-2:-1]:
            super()._write(chunk, version, attempt, weights, momentum, summed)


class Eager(Node):
    """Writes the first page of an extent twice."""

    def _written(
        self, action: node_actions.Update, page: PageGroup, weights: object, momentum: object,
        summed: Summed,
    ) -> object:  # fmt: skip
        first = self._pages(action.extent)[0].chunks[0]
        self._owned.write(first, action.step + 1, action.attempt, weights, momentum)
        return super()._written(action, page, weights, momentum, summed)


class Mixed(Node):
    """Takes the absent segments of an extent for those of each of its pages."""

    def _pages(self, extent: int) -> tuple[PageGroup, ...]:
        pages = extent_pages(self.disk.share, extent)
        return tuple(replace(each, first_segment=0) for each in pages)


@pytest.mark.parametrize(
    ("kind", "found"),
    [(Forgetful, "O3: of extent|O2|O6"), (Eager, "written twice"), (Mixed, "O3: of extent|O2|O6")],
)
def test_the_oracles_see_what_is_wrong_with_an_extent(kind: type[Node], found: str) -> None:
    """O7. Goal: a page left out, a page written twice, and segments of another page are found."""

    class Wrong(Simulation):
        node_type = kind

    options = Options(rows=260, extent_chunks=3, absent_parameters=True)
    with pytest.raises(AssertionError, match=found):
        run_history(History(1, options, ()), Wrong)
