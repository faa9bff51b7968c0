"""O1 to O7: histories whose parameters are updated as a whole, and have several extents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from switch_emu.node.core import actions as node_actions
from tests.simulate.cluster import Cluster
from tests.simulate.disk import Summed
from tests.simulate.faults import Fault
from tests.simulate.history import Simulation, run_history
from tests.simulate.job import Job, make_layout
from tests.simulate.machines import Node
from tests.simulate.plan import History, Options, make_history
from tests.simulate.test_extents import IN_THE_MIDDLE, ORDERED, UPDATES

OPTIONS = Options(rows=260, sheets=True, stored=True, steps=4, poison_step=2, keeps=True)


def test_a_quarter_of_all_histories_have_sheets() -> None:
    """Goal: with one node and with several, with extents of one chunk and of more."""
    options = [make_history(seed).options for seed in range(400)]
    drawn = [each for each in options if each.sheets]
    assert 70 <= len(drawn) <= 130
    assert {each.optimizer_nodes for each in drawn} == {1, 2, 3}
    assert {each.extent_chunks for each in drawn} >= {1, 2, 100}
    layouts = [each.job().layout for each in drawn]
    assert any(len(layout.sheet(extent)) > 1 for layout in layouts for extent in layout.sheets)


@pytest.mark.parametrize("fault", IN_THE_MIDDLE, ids=repr)
@pytest.mark.parametrize("update", UPDATES)
def test_an_end_between_two_extents_of_a_sheet(update: str, fault: Fault) -> None:
    """O1 to O6. Goal: what was written of a sheet whose attempt was given up, or whose node ended
    between two of its extents, does not count; also of steps that are updated twice."""
    for norm in (None, 1.0):
        options = replace(OPTIONS, update=update, max_grad_norm=norm)
        simulation = run_history(History(5, options, (fault,)))
        assert simulation.counts[type(fault).__name__] == 1


@pytest.mark.parametrize("update", UPDATES)
def test_a_sheet_is_one_update(update: str) -> None:
    """Goal: an update has all extents of its sheet, and begins when the last gradient is there. No
    receipt waits for it, though no gradient has room: the window is as large as one."""
    seen: list[node_actions.Update] = []

    class Watched(Node):
        def _update(self, action: node_actions.Update) -> Any:
            seen.append(action)
            return super()._update(action)

    class Watching(Cluster):
        node_type = Watched

    layout = make_layout(sheets=True, frozen=False)
    limits = node_actions.NodeLimits(
        updates_max=1, reads_max=2, push_window_bytes=17_000, sum_bytes_max=1_000
    )
    job = Job(layout, update=update, node_limits=limits)
    Watching(0, job, ORDERED).run_to_the_end()
    for each in seen:
        extents = [*(other.extent for other in each.others), each.extent]
        assert extents == [*layout.sheet(each.extent)]
    assert len(seen) == job.steps * 6  # a sheet and a small parameter in each of three units


def test_the_oracles_see_a_sheet_in_part() -> None:
    """O7. Goal: extents of a sheet that are not written are found."""

    class Parted(Node):
        def _write_page(
            self, action: node_actions.Update, chunk: int, weights: Any, momentum: Any,
            summed: Summed,
        ) -> None:  # fmt: skip
            sheet = self._job.layout.sheets.get(action.extent, ())
            if not sheet or action.extent == sheet[-1]:
                super()._write_page(action, chunk, weights, momentum, summed)

    class Wrong(Simulation):
        node_type = Parted

    with pytest.raises(AssertionError, match=r"O2|O3|O6"):
        run_history(History(1, replace(OPTIONS, stored=False, poison_step=None), ()), Wrong)
