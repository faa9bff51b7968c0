"""I2: the node's pipeline, between a core and a store."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from luwu.aggregate import Float32
from luwu.base.events import Recorder
from luwu.protocol.contribution import Contribution
from luwu.wire.hyper import encode_hyper
from switch_emu.node.core.actions import Update
from switch_emu.node.page_updates import Kernels
from switch_emu.node.pages import store_config, weights_digest
from switch_emu.node.pipeline import Pipeline, Stored
from switch_emu.node.plan import plan_node
from switch_emu.process.payload import Buffers, Payload
from switch_emu.store import DecidedStep, MemoryPageStore
from switch_emu.store.attachments import AttachmentFiles
from tests.helpers.local_job import Job, every_order


class Answers:
    """The methods of a core that the pipeline calls when an update is done."""

    groups = ()

    def __init__(self) -> None:
        self.calls: list[str] = []

    def updated(self, update: Any, squares: Any, weights: Any, **told: Any) -> list[Any]:
        self.calls.append("updated")
        return []

    def written(self, update: Any) -> list[Any]:
        self.calls.append("written")
        return []


@every_order
def test_an_update_of_an_aborted_attempt_does_no_harm(update: str) -> None:
    """I2. Goal: an update under way when its attempt is given up leaves no trace in the store, is
    reported as any other, and does not stop the node.
    Method: the attempt is raised in the store before the pipeline takes the update up."""
    job = Job(update=update)
    store = MemoryPageStore(store_config(job.description))
    for page in range(store.config.page_count):
        store.write(page, 0, 0, bytes(store.config.kind(page).record_bytes))
    store.prepare(DecidedStep(version=0, attempt=0))
    store.decide(0, 0)
    digest = weights_digest(store, job.layout)
    grad = Payload(memoryview(np.ones(4096, np.float32).view(np.uint8)))
    action = Update(
        extent=0, step=0, attempt=0, divisor=2.0, norms=(1.0,), hyper=encode_hyper(job.hyper(0)),
        contributions=(Contribution(3, 2.0, True, "float32", grad, grad.nbytes),), absent=0,
        publish=False,
    )  # fmt: skip
    done = threading.Semaphore(0)
    answers: Any = Answers()
    store.record_attempt(1)
    stored = Stored(
        store=store,
        attachments=AttachmentFiles(None, synced=False, decided=None),
        buffers=Buffers(lambda nbytes: memoryview(bytearray(nbytes))),
    )
    plan = plan_node(
        budget_bytes=1 << 28, chunk_bytes=job.layout.chunk_bytes, world_size=1, has_switch=True
    )
    pipeline = Pipeline(
        answers, stored, job.description, job=1, kernels=Kernels.of(job.description),
        aggregator=Float32(1), plan=replace(plan, updates_count=1, reads_count=1),
        recorder=Recorder(role="node", printed=None), wake=done.release,
    )  # fmt: skip
    pipeline.start(action)
    while len(answers.calls) < 2:
        assert done.acquire(timeout=10)
        for finished in pipeline.take_finished():
            finished()
    pipeline.close()
    assert answers.calls == ["updated", "written"]
    store.abort(0)
    store.prepare(DecidedStep(version=1, attempt=1))
    store.decide(1, 1)
    assert weights_digest(store, job.layout) == digest
