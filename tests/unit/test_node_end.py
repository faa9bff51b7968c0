"""When the optimizer node may end: the real core, told by hand what its pipeline has done."""

from __future__ import annotations

from luwu.base.limits import PROTOCOL_VERSION
from luwu.wire import messages as wire
from luwu.wire.kinds import Role
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as do
from tests.simulate.job import JOB, Job, make_layout

STAMP = {
    "job": JOB, "epoch": 0, "step": 0, "attempt": 1, "role": Role.SWITCH, "rank": 0,
    "incarnation": 5, "generation": 1,
}  # fmt: skip


def test_a_run_without_steps_ends_when_its_first_weights_are_decided() -> None:
    """I2. Goal: a child that loads weights and leaves at once loses nothing: the node goes on until
    version 0 is decided. Method: the child leaves while the version is being prepared."""
    job = Job(make_layout(units=1, frozen=False), world_size=1)
    description = job.description
    core = NodeCore(job=JOB, incarnation=9, ranks=1)
    core.store_opened(
        do.StoreFacts(
            description=description.to_bytes(), generation=1, attempt=1, epoch=0, job=JOB,
            version=None,
        )
    )  # fmt: skip
    hello = wire.Hello(
        **{**STAMP, "generation": 0}, protocol=PROTOCOL_VERSION, world_size=1, contributors=1,
        present=1, roll=0, description_hash=description.hash,
    )  # fmt: skip
    core.received(0, "child", hello, description.to_bytes())
    actions = []
    for chunk in job.layout.chunks:
        load = wire.Load(**STAMP, index=chunk.index, part=0)
        core.received(0, "child", load, object(), chunk.sum_bytes)
        actions = core.page_loaded(do.LoadPage(chunk.index, 1, None))
    (prepare,) = (each for each in actions if isinstance(each, do.Prepare))

    core.received(0, "child", wire.Leave(**STAMP, contributors=1))

    assert not core.finished
    (decide,) = core.prepared(prepare)
    assert isinstance(decide, do.Decide)
    assert not core.finished
    core.decided(decide)
    assert core.finished
