"""I2, I3, I5, P8: masters of a state in RAM lie in the places from which workers read them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luwu.aggregate import Float32
from luwu.base.address import address_of
from luwu.base.events import Recorder
from luwu.layout import Layout, Parameter, Unit
from luwu.protocol.contribution import Contribution
from luwu.wire.hyper import encode_hyper
from switch_emu.node import pipeline
from switch_emu.node.core.actions import LoadPage, ReadWeights, Update
from switch_emu.node.page_updates import Kernels
from switch_emu.node.pages import store_config, weights_digest
from switch_emu.node.pipeline import Pipeline, Stored
from switch_emu.node.placement import Placement
from switch_emu.node.spec import NodeSpec
from switch_emu.node.storage import NodeStorage
from switch_emu.process.payload import Buffers, Payload
from switch_emu.store import DecidedStep
from switch_emu.store.attachments import AttachmentFiles
from tests.light_job import KIB, MIB, Job, initial, make_layout

LAYOUT = make_layout(extent_chunks=2)
TRAINED = [extent.index for extent in LAYOUT.extents if extent.trainable]
EXTENT = 0
"""It has two pages that differ in size."""


@dataclass
class Answers:
    """The methods of a core that the pipeline calls, and what it told them."""

    groups = ()
    told: list[tuple[str, Any, Any]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        def answer(action: Any, *given: Any, **named: Any) -> list[Any]:
            payload = next((each for each in given if isinstance(each, Payload)), None)
            self.told.append((name, payload, named))
            return []

        return answer


class Node:
    """The store, the places and the pipeline of a node whose state is in RAM."""

    def __init__(
        self, *, in_arenas: bool, wire_dtype: str = "float32", update: str = "at_step"
    ) -> None:
        layout = make_layout(16, wire_dtype, extent_chunks=2)
        self.job = Job(layout=layout, update=update, world_size=1)
        spec = NodeSpec(
            job=1, listen="", summary=Path(), world_size=1, durability="none",
            memory_budget_bytes=8 * MIB, chunk_bytes=16 * KIB, extent_chunks=2,
            arena_bytes=int(in_arenas),
        )  # fmt: skip
        self.arena: list[memoryview] = []
        self.plan, self.copies_count = spec.plan(), 0
        self.storage = NodeStorage(spec, self.plan, self._reserve)
        self.store = self.storage.make_store(self.job.description)
        self.places = self.storage.make_places(self.job.description)
        self._done, self.answers = threading.Semaphore(0), Answers()
        self._pipeline = Pipeline(
            self.answers,  # type: ignore[arg-type]
            Stored(
                store=self.store, attachments=AttachmentFiles(None, synced=False, decided=None),
                buffers=Buffers(self._copy), places=self.places,
            ),
            self.job.description, job=1,
            kernels=Kernels.of(self.job.description),
            aggregator=Float32(1), plan=replace(self.plan, updates_count=1, reads_count=1),
            recorder=Recorder(role="node", printed=None), wake=self._done.release,
        )  # fmt: skip
        for chunk in layout.chunks:
            values = initial(chunk.index, chunk.elems)
            payload = Payload(memoryview(values.view(np.uint8)))
            self.does(LoadPage(chunk.index, 0, payload), "page_loaded")
        self.decide(0)

    def _reserve(self, nbytes: int) -> memoryview:
        self.arena.append(memoryview(bytearray(nbytes)))
        return self.arena[-1]

    def _copy(self, nbytes: int) -> memoryview:
        self.copies_count += 1
        return memoryview(bytearray(nbytes))

    def does(self, action: Any, answer: str) -> tuple[Payload | None, Any]:
        """The reports of the pipeline after an action."""
        self._pipeline.start(action)
        found = None
        while found is None:
            assert self._done.acquire(timeout=10), f"{answer} did not come"
            for finished in self._pipeline.take_finished():
                finished()
            told = {name: (payload, named) for name, payload, named in self.answers.told}
            found = told.get(answer) if "updated" not in told or "written" in told else None
        self.answers.told.clear()
        return found

    def update(self, extent: int, step: int, **changes: Any) -> tuple[Payload | None, Any]:
        """Update an extent."""
        elems = self.job.layout.extents[extent].elems
        values = np.random.default_rng([extent, step]).standard_normal(elems, np.float32)
        grad = Payload(memoryview(values.view(np.uint8)))
        action = Update(
            extent=extent, step=step, attempt=0, divisor=2.0, norms=(1.0,), absent=0, publish=True,
            hyper=encode_hyper(self.job.hyper(step)),
            contributions=(Contribution(1, 2.0, True, "float32", grad, grad.nbytes),),
        )  # fmt: skip
        action = replace(action, **changes)
        return self.does(action, "previewed" if action.is_preview else "updated")

    def read(self, extent: int, step: int, version: int | None) -> tuple[Payload | None, bool]:
        """Weights of an extent, and whether they are in place."""
        payload, told = self.does(ReadWeights(extent, step, version, 0, (0,)), "weights_read")
        return payload, told["in_place"]

    def decide(self, version: int, attempt: int = 0) -> str:
        """Decide a version; the digest of its weights."""
        self.store.prepare(DecidedStep(version=version, attempt=attempt))
        self.store.decide(version, attempt)
        return weights_digest(self.store, self.job.layout)

    def is_in_arena(self, payload: Payload | None) -> bool:
        """True if a payload lies where it is shared."""
        assert payload is not None
        (arena,) = self.arena
        start = address_of(payload.view()) - address_of(arena)
        return 0 <= start < arena.nbytes

    def close(self) -> None:
        """End its threads."""
        self._pipeline.close()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """A node whose masters lie in places, and one without places: the state of both is the same."""
    pair = Node(in_arenas=True), Node(in_arenas=False)
    yield pair
    for node in pair:
        node.close()


def test_weights_are_there_once(nodes: tuple[Node, Node]) -> None:
    """I3, I5. Goal: weights of the first version, and of those that updates make, are read and
    handed out where the masters lie, and no copy is made; frozen ones too. The bits are those of a
    node that has no places; so is the memory that is left for sums."""
    node, plain = nodes
    for extent in LAYOUT.extents:
        payload, in_place = node.read(extent.index, 0, 0)
        expected, _ = plain.read(extent.index, 0, 0)
        assert in_place
        assert node.is_in_arena(payload)
        assert content(payload) == content(expected)
    for step in range(3):
        for extent in TRAINED:
            payload, told = node.update(extent, step)
            assert told == {"in_place": True}
            assert node.is_in_arena(payload)
            expected, _ = plain.update(extent, step)
            assert content(payload) == content(expected)
        assert node.decide(step + 1) == plain.decide(step + 1)
    assert node.copies_count == 0
    taken = [
        each.plan.resident_bytes - each.storage.spare_bytes(each.job.description) for each in nodes
    ]
    assert 0 <= taken[0] - taken[1] < 4096 * len(LAYOUT.units)


def test_a_preview_leaves_the_masters(nodes: tuple[Node, Node]) -> None:
    """P8. Goal: weights that are made before their update are a copy, of the bits of the update;
    the decided version can still be read, where it was."""
    node, _ = nodes
    before, _ = node.read(EXTENT, 0, 0)
    expected = content(before)
    preview, told = node.update(EXTENT, 0, is_preview=True)
    assert told == {"in_place": False}
    again, in_place = node.read(EXTENT, 0, 0)
    assert in_place
    assert content(again) == expected
    made = content(preview)
    assert made != expected
    assert content(node.update(EXTENT, 0)[0]) == made


def test_a_short_update_waits_for_no_thread(nodes: tuple[Node, Node]) -> None:
    """Goal: the loop adds by itself, while threads have the memory in which they add."""
    elems = LAYOUT.extents[EXTENT].elems
    grads = [Payload(memoryview(bytearray(4 * elems))) for _ in range(2)]
    said = [Contribution(1 << i, 1.0, True, "float32", g, 4 * elems) for i, g in enumerate(grads)]
    for node in nodes:
        with node._pipeline._adder._lock:
            assert node.update(EXTENT, 0, contributions=tuple(said))[0] is not None


def test_pages_on_different_sides_are_updated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3. Goal: the loop and a thread make the same bits of two pages, of which one had no gradient
    in the step before, and so lies on the other side."""
    digests = set()
    for short_elems in (0, 1 << 16):
        monkeypatch.setattr(pipeline, "_SHORT_ELEMS", short_elems)
        node = Node(in_arenas=False, update="streaming")
        for step, absent in enumerate((0b10, 0)):
            node.update(1, step, absent=absent)
            digests.add((step, node.decide(step + 1)))
        node.close()
    assert len(digests) == 2


def test_weights_after_a_skipped_step_are_where_they_were(nodes: tuple[Node, Node]) -> None:
    """I3. Goal: a step that changes nothing costs no copy."""
    node, _ = nodes
    before, _ = node.read(EXTENT, 0, 0)
    after, in_place = node.read(EXTENT, 1, None)
    assert in_place
    assert before is not None
    assert after is not None
    assert address_of(after.view()) == address_of(before.view())
    assert node.copies_count == 0


@pytest.mark.parametrize(
    ("in_arenas", "update"), [(True, "at_step"), (False, "at_step"), (False, "streaming")]
)
def test_an_update_of_an_aborted_attempt_does_no_harm(in_arenas: bool, update: str) -> None:
    """I2. Goal: an update under way when its attempt is given up leaves no trace in the store, is
    reported as any other, and does not stop the node; the weights are handed out as before.
    Method: the attempt is raised in the store before the pipeline takes the update up."""
    node = Node(in_arenas=in_arenas, update=update)
    digest = weights_digest(node.store, LAYOUT)
    node.store.record_attempt(1)
    payload, _ = node.update(EXTENT, 0)
    assert (payload is None) == in_arenas, "a copy is nobody's"
    assert weights_digest(node.store, LAYOUT) == digest
    again, in_place = node.read(EXTENT, 0, 0)
    assert in_place == in_arenas
    assert not in_arenas or node.is_in_arena(again)
    node.store.abort(0)
    assert node.decide(1, attempt=1) == digest
    node.close()


def test_narrow_weights_have_their_places() -> None:
    """Goal: weights that travel in fewer bits than their masters have are a copy in their place."""
    node = Node(in_arenas=True, wire_dtype="bfloat16")
    assert node.places is not None
    assert not any(node.places.keeps_masters(extent) for extent in TRAINED)
    payload, in_place = node.read(EXTENT, 0, 0)
    assert in_place
    assert node.is_in_arena(payload)
    rows = node.store.rows_in_ram(0, 1, 0)
    assert rows is not None
    assert rows.weights is None
    node.close()


def test_a_state_in_ram_of_one_side_has_places_wherever_it_fits() -> None:
    """I5. Goal: masters in the places of their weights take no room beside the state.
    Method: a billion parameters, and budgets of all sizes."""
    parameters = tuple(Parameter(name=f"p{i}", shape=(8192, 4096)) for i in range(30))
    units = tuple(Unit(name=f"u{i}", parameters=(i,)) for i in range(30))
    layout = Layout(parameters=parameters, units=units, chunk_bytes=16 * MIB)
    job = Job(layout=layout, update="at_step").description
    masters_bytes = 4 * 30 * 8192 * 4096
    table_bytes = 8 * len(layout.extents)
    state_bytes = store_config(job).state_bytes
    found = {}
    for gib in range(10, 24):
        spec = NodeSpec(
            job=1, listen="", summary=Path(), world_size=2, memory_budget_bytes=gib << 30,
            chunk_bytes=16 * MIB, arena_bytes=1,
        )  # fmt: skip
        plan = spec.plan()
        has_room = plan.resident_bytes >= state_bytes + table_bytes
        found[gib] = Placement(spec=spec, plan=plan, description=job).bytes_in_place
        assert found[gib] == has_room * (masters_bytes + table_bytes)
    assert found[10] == 0
    assert found[16] > 0


def content(payload: Payload | None) -> bytes:
    """The bytes of a payload, which is dropped."""
    assert payload is not None
    found = bytes(payload.view())
    payload.drop()
    return found
