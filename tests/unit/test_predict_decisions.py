"""A decision of a core that is changed changes every played prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.estimate.messages import message_uses
from luwu.estimate.shape import JobShape
from luwu.predict.ask.question import make_question
from luwu.predict.driven.cores import Cores
from luwu.predict.driven.counting import WORKERS_MAX, ends_of_step
from luwu.predict.driven.driven import Playing, play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.systems.in_network import OptimizerNodes
from luwu.protocol.actions import Send
from luwu.wire.kinds import Verb
from luwu.wire.messages import Received
from switch_emu.switch.core import SwitchCore
from tests.unit.unit_layouts import layout_of_units


class Twice(SwitchCore):
    """A switch that acknowledges every push twice."""

    def received(self, *event: Any, **more: Any) -> list[Any]:
        found = []
        for action in super().received(*event, **more):
            found.append(action)
            if isinstance(action, Send) and isinstance(action.message, Received):
                found += [action] if action.message.verb is Verb.PUSH else []
        return found


TWICE = Cores(switch=Twice)


def job(extent_chunks: int = 1) -> JobShape:
    layout = layout_of_units(
        [8 * 16 * 1024] * 4, chunk_bytes=64 * 1024, extent_chunks=extent_chunks
    )
    return JobShape(layout=layout, workers=2, transport="ipc", tokens_per_step=64)


def question(catalogue: Catalogue) -> Any:
    node = {"processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 12}
    return make_question(
        {
            "system": "luwu", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
            "software": "deepspeed-2023", "devices": 8, "sequence": 2048, "batch": 32,
            "micro_batch": 4, "recompute": "full", "node": {**node, "cached": 1.0},
        },
        catalogue,
    )  # fmt: skip


def test_a_second_receipt_is_counted_by_the_estimate() -> None:
    """Goal: ends of messages of an estimate are those that the cores send. Method: a switch that
    acknowledges each push twice has one end more for each worker, and each worker one more."""
    chunks = len(job().layout.chunks)
    own = {use.role: use.ends for use in message_uses(job())}
    twice = {use.role: use.ends for use in message_uses(job(), TWICE)}
    assert twice["worker"] == own["worker"] + chunks
    assert twice["switch"] == own["switch"] + 2 * chunks
    assert twice["node"] == own["node"]


def test_many_workers_add_what_one_more_adds() -> None:
    """Goal: more workers than are played are counted as if they were."""
    few, more, many = (ends_of_step(WORKERS_MAX + n, "streaming") for n in (-1, 0, 100))
    each = more["switch"].push - few["switch"].push
    assert many["switch"].push == more["switch"].push + 100 * each
    assert many["worker"] == few["worker"]


# ---------------------------------------------------------------------- extents


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("workers", [1, 3, WORKERS_MAX + 5])
def test_an_extent_has_the_messages_of_a_chunk(workers: int, update: str) -> None:
    """Goal: a message carries an extent, however many chunks that has."""
    assert ends_of_step(workers, update, extent_chunks=8) == ends_of_step(workers, update)


@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
@pytest.mark.parametrize(("extent_chunks", "extents"), [(1, 32), (2, 16), (3, 12), (8, 4), (64, 4)])
def test_extents_divide_the_messages_of_a_step(
    extent_chunks: int, extents: int, has_switch: bool
) -> None:
    """Goal: a step has fewer messages by as many chunks as an extent has; those of the step itself
    stay. Method: four units of eight chunks; of eight, three by three are three extents."""
    shape = replace(job(extent_chunks), has_switch=has_switch)
    single = replace(job(), has_switch=has_switch)
    assert len(shape.layout.extents) == extents
    ends = ends_of_step(2, "streaming")
    own = {False: {"node": "switch"}, True: {}}[has_switch]
    for use, before in zip(message_uses(shape), message_uses(single), strict=True):
        each = ends[own.get(use.role, use.role)]
        others = each.step + 2 * len(shape.layout.units) * each.request
        assert use.role == before.role
        assert use.ends - others == (before.ends - others) * extents / 32


def test_extents_change_no_bytes_of_hosts_that_are_not_here(catalogue: Catalogue) -> None:
    """Goal: what drives, memory and links move is the same with extents; a page is still what is
    read and written. Method: half of a state on drives, chunks of 128 MiB, two by two."""
    asked = question(catalogue)
    assert isinstance(asked.part, OptimizerNodes)
    nodes = replace(asked.part, cached=0.5)
    own, fewer = (
        play_driven_steps(
            asked.job, nodes, Playing(chunk_bytes=1 << 27, extent_chunks=count, steps=2, workers=1)
        )
        for count in (1, 2)
    )
    for engine in ("up", "down", "disk read", "disk write"):
        assert fewer.record.amount(engine) == pytest.approx(own.record.amount(engine), rel=1e-5)
    pages = [len(played.told["node"].of("update")) for played in (own, fewer)]
    assert pages[0] == pages[1]
    sent = [len(played.record.of("up")) for played in (own, fewer)]
    assert sent[0] == 2 * sent[1]
    assert fewer.step_s == pytest.approx(own.step_s, rel=0.01)
