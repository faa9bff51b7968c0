"""Readers: a decided step, field by field, while training goes on and is not disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import luwu
from luwu.base.digest import WeightsDigest
from luwu.base.errors import DeadlineError, RemoteProtocolError, StateError
from luwu.base.limits import PROTOCOL_VERSION, READERS_MAX
from luwu.base.links import parse_links
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.core.reader import ReaderCore
from luwu.nic.reader import FieldRead, StateReader
from luwu.protocol.actions import Drop, Send
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.hyper import decode_hyper
from luwu.wire.messages import Role
from luwu.wire.reading import VersionFacts
from switch_emu.node.core.actions import PinVersion, ReadField, Unpin
from switch_emu.node.core.readers import IDLE_NS, LEASE_NS, Readers
from tests.helpers.real_training import MIB, in_cluster, sharded, train_steps
from tests.helpers.small_models import Stack

STEPS = 6
PINNED = 2


def training(rank: int) -> Callable[[int, int], None]:
    """What makes the steps of a rank, up to one that is decided."""
    model = sharded(lambda: Stack(blocks=2))
    optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2)

    def train(first: int, last: int) -> None:
        train_steps(model, optimizer, first, last, rank)
        luwu.session().results.wait_for_last()

    return train


def read_weights(reader: StateReader, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """All parameters, by name, as the reader's version has them."""
    layout = reader.description.layout
    kind = getattr(torch, dtype)
    chunks = [torch.empty(chunk.elems, dtype=kind) for chunk in layout.chunks]
    reader.read(
        FieldRead(chunk.index, "weight", memoryview(into.view(torch.uint8).numpy()), dtype)
        for chunk, into in zip(layout.chunks, chunks, strict=True)
    )
    found = {p.name: torch.empty(p.elems, dtype=kind) for p in layout.parameters}
    for chunk, values in zip(layout.chunks, chunks, strict=True):
        for s in layout.segments(chunk.index):
            part = values[s.chunk_start : s.chunk_start + s.elems]
            name = layout.parameters[s.parameter].name
            found[name][s.parameter_start : s.parameter_start + s.elems] = part
    return {p.name: found[p.name].view(p.shape) for p in layout.parameters}


def digest(reader: StateReader) -> str:
    found, weights = WeightsDigest(), read_weights(reader)
    for p in reader.description.layout.parameters:
        found.update(p.name, p.dtype, p.shape, weights[p.name].numpy())
    return found.hexdigest()


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Of the weights after so many steps."""

    def run(steps: int) -> str:
        work = lambda rank: training(rank)(0, steps)  # noqa: E731
        return in_cluster(tmp_path_factory.mktemp("digests"), work, world_size=2).digest

    return {steps: run(steps) for steps in (PINNED, STEPS)}


@pytest.mark.feature("readers of a decided step")
@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
@pytest.mark.parametrize(
    ("transport", "place", "budget"),
    [("inproc", "ram", 64), ("tcp", "disk", 4), ("ipc", "tier", 64), ("shm", "tier", 64)],
)
def test_a_version_is_read_while_training_goes_on(
    has_switch: bool,
    transport: str,
    place: str,
    budget: int,
    digests: dict[int, str],
    tmp_path: Path,
) -> None:
    """Goal: what was opened after step 2 stays step 2, to the bit, four steps later, and a reader
    opened then sees those; training ends as it does without readers. Over tcp, messages are
    repeated and overtake others."""

    def work(rank: int) -> list[tuple[int, str]]:
        train = training(rank)
        train(0, PINNED)
        with luwu.session().nic.open_reader() as reader:
            train(PINNED, STEPS)
            seen = [(reader.version, digest(reader))]
            with luwu.session().nic.open_reader() as newest:
                seen.append((newest.version, digest(newest)))
            seen.append((reader.version, digest(reader)))
        return seen

    changes: dict[str, Any] = {
        "transport": transport,
        "has_switch": has_switch,
        "state": None if place == "ram" else tmp_path / "state",
        "memory_budget_bytes": budget * MIB,
        "links": parse_links("duplicate=0.3,reorder=4") if transport == "tcp" else None,
    }
    found = in_cluster(tmp_path, work, world_size=2, **changes)
    assert found.digest == digests[STEPS]
    for seen in found.results:
        assert [version for version, _ in seen] == [PINNED, STEPS, PINNED]
        assert [each for _, each in seen] == [digests[PINNED], digests[STEPS], digests[PINNED]]
    assert not list(tmp_path.rglob("pin-*"))


def test_moments_and_rounded_weights_can_be_read(tmp_path: Path) -> None:
    """Goal: every field of a page, weights as they travel, and what is known of the step."""

    def work(rank: int) -> None:
        training(rank)(0, 3)
        with luwu.session().nic.open_reader() as reader:
            exact, rounded = read_weights(reader), read_weights(reader, "bfloat16")
            for name, values in exact.items():
                assert torch.equal(values.bfloat16(), rounded[name])
            updates = np.zeros(1, np.int64)
            moment = np.zeros(reader.description.layout.chunks[0].elems, np.float32)
            reader.read([
                FieldRead(0, "updates", memoryview(updates.view(np.uint8))),
                FieldRead(0, "v", memoryview(moment.view(np.uint8))),
            ])  # fmt: skip
            assert updates[0] == 3
            assert (moment >= 0).all()
            assert moment.any()
            facts = reader.facts
            assert (facts.version, facts.applied) == (3, True)
            assert facts.grad_norm is not None
            assert decode_hyper(facts.hyper).groups[0]["lr"] == 1e-2

    in_cluster(tmp_path, work)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """Goal: an unknown field or chunk ends the reader with a reason, and the node goes on."""

    def work(rank: int) -> None:
        train = training(rank)
        for chunk, name, text in ((0, "max", "no field 'max'"), (999, "weight", "no chunk 999")):
            with luwu.session().open_reader() as reader:
                into = memoryview(bytearray(64))
                with pytest.raises(StateError, match=text):
                    reader.read([FieldRead(chunk, name, into)])
        train(0, 1)

    in_cluster(tmp_path, work)


def test_a_reader_waits_for_the_first_weights(tmp_path: Path) -> None:
    """Goal: a job without weights says nothing; the reader says what it waits for."""
    with (
        LocalCluster(
            world_size=1, state=None, memory_budget_bytes=8 * MIB, summary=tmp_path / "s.json",
            grace_s=0.2,
        ) as cluster,
        cluster.reader() as reader,
        pytest.raises(DeadlineError, match="none before"),
    ):  # fmt: skip
        reader.open()


# -------------------------------------------------------------------------- the pure parts


def said(kind: Any, reader: int = 5, **fields: Any) -> Any:
    stamp = {
        "job": 1, "epoch": 0, "step": 0, "attempt": 0, "role": Role.READER, "rank": 0,
        "incarnation": reader, "generation": 0,
    }  # fmt: skip
    return kind(**{**stamp, "reader": reader, **fields})


def desk() -> tuple[Readers, list[Any]]:
    outbox = Outbox(job=1, role=Role.READER, rank=0, incarnation=5)
    return Readers(outbox), outbox.actions


def taken(actions: list[Any]) -> list[Any]:
    found = actions[:]
    actions.clear()
    return found


def test_the_desk_does_nothing_twice() -> None:
    """Goal: repetitions pin and read once; answers go where the reader was last heard."""
    readers, actions = desk()
    readers.received(0, "p-1", said(wire.Open), loaded=False)
    assert not taken(actions)
    readers.received(0, "p-1", said(wire.Open), loaded=True)
    readers.received(0, "p-2", said(wire.Open), loaded=True)
    assert taken(actions) == [PinVersion(5)]
    readers.pinned(5, 7, b"facts")
    (send,) = taken(actions)
    assert (send.peers, send.message.step, send.payload) == (("p-2",), 7, b"facts")
    readers.received(1, "p-2", said(wire.Open), loaded=True)
    assert taken(actions) == [send]
    ask = said(wire.Read, index=3, part=0, field="m", dtype="float32")
    readers.received(2, "p-2", ask, loaded=True)
    readers.received(3, "p-2", ask, loaded=True)
    (read,) = taken(actions)
    assert read == ReadField(5, 3, "m", "float32")
    readers.field_read(read, "payload")
    content, drop = taken(actions)
    assert (content.message.index, content.message.step) == (3, 7)
    assert (content.payload, drop) == ("payload", Drop("payload"))
    readers.received(4, "p-2", said(wire.Shut), loaded=True)
    assert [type(each) for each in taken(actions)] == [Unpin, Send]
    readers.received(5, "p-2", ask, loaded=True)
    (gone,) = taken(actions)
    assert isinstance(gone.message, wire.Gone)


def test_the_desk_forgets_the_silent_and_bounds_the_many() -> None:
    """Goal: a reader that died holds no version for ever; a crowd is refused."""
    readers, actions = desk()
    for number in range(40):
        readers.received(number, "p-1", said(wire.Open, number), loaded=True)
    found = taken(actions)
    assert len([each for each in found if isinstance(each, PinVersion)]) == 16
    assert all("try again later" in e.message.text for e in found if isinstance(e, Send))
    readers.received(0, "p-1", said(wire.Read, 3, index=0, part=0, field="m", dtype="float32"),
                     loaded=True)  # fmt: skip
    taken(actions)
    readers.tick(LEASE_NS)
    assert taken(actions) == [Unpin(0)]
    assert readers.next_tick_ns() == LEASE_NS + 1
    readers.tick(10 * LEASE_NS)
    assert {each.reader for each in taken(actions)} == set(range(1, 16)) - {3}  # 3 is being read
    readers.pinned(0, 1, b"")
    assert taken(actions) == [Unpin(0)]  # it was pinned too late


def test_a_full_desk_gives_the_place_of_a_silent_reader() -> None:
    """Goal: places that strangers took and do not use go to who asks; those in use do not."""
    readers, actions = desk()
    for number in range(READERS_MAX):
        readers.received(number, "p-1", said(wire.Open, number), loaded=True)
    used = said(wire.Read, 0, index=0, part=0, field="m", dtype="float32")
    readers.received(IDLE_NS, "p-1", used, loaded=True)
    taken(actions)
    readers.received(IDLE_NS, "p-2", said(wire.Open, 99), loaded=True)
    (gone,) = taken(actions)
    assert "try again later" in gone.message.text
    readers.received(IDLE_NS + 1, "p-2", said(wire.Open, 99), loaded=True)
    assert taken(actions) == [Unpin(1), PinVersion(99)]


@pytest.mark.feature("reading a running job of another protocol version")
@pytest.mark.parametrize(("theirs", "named"), [(b'"protocol":11,', "11,"), (b"", "not stated")])
def test_a_node_of_another_protocol_is_not_read(theirs: bytes, named: str) -> None:
    """Goal: a reader, which sends no Hello, finds it by the first answer, and names both versions.
    Method: what `luwu export URL` is sent first by a node of another luwu."""
    core = ReaderCore(job=1, reader=5)
    core.open(0)
    facts = VersionFacts(version=2, description=b"{}").to_bytes()
    ours = f'"protocol":{PROTOCOL_VERSION},'.encode()
    assert ours in facts
    text = f"version is {named}.* side's is {PROTOCOL_VERSION}; install the same luwu on both sides"
    with pytest.raises(RemoteProtocolError, match=text):
        core.received(said(wire.Opened, step=2), facts.replace(ours, theirs))


def test_an_answer_to_another_reader_is_dropped() -> None:
    core = ReaderCore(job=1, reader=5)
    core.read(0, 3, "m", "float32")
    other = said(wire.Content, 6, index=3, part=0, field="m", dtype="float32")
    assert core.received(other, "foreign") == [Drop("foreign")]
