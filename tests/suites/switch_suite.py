"""What a switch does at every fidelity: one suite, whatever its slots are.

A subclass says how many slots there are (None: functional). The core is driven by hand, message by
message, with a parent that the test plays.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

from luwu.aggregate.float32 import sum_in_order
from luwu.aggregate.interface import ENCODED
from luwu.base.limits import PROTOCOL_VERSION
from luwu.layout import Layout, Parameter, Unit
from luwu.protocol.actions import PARENT, Drop, Expel, Send
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.messages import Role, Verb
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Cache, Sum, SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolSize
from tests.simulate.job import JOB, RETRY
from tests.simulate.world import Payload, payload_bytes

WORLD = 3
ALL = (1 << WORLD) - 1
CHUNK_BYTES = 16 * 1024
LAYOUT = Layout(
    parameters=tuple(Parameter(name=f"w{i}", shape=(CHUNK_BYTES // 16,)) for i in range(20)),
    units=(Unit(name="all", parameters=tuple(range(20))),),
    chunk_bytes=CHUNK_BYTES,
)
DESCRIPTION = Description(layout=LAYOUT, optimizer="test")
EXTENTS = LAYOUT.trainable_extents(0)
"""Five, all of them full and of four segments, in the order of a backward."""
WINDOW_BYTES = 10**6


def child(rank: int) -> str:
    return f"worker-{rank}"


@dataclass
class Bench:
    """A switch between three children and a parent, all played by a test; sums are made at once."""

    limits: SwitchLimits
    to_parent: list[Send] = field(default_factory=list)
    """What the parent was sent and has not answered."""
    told: list[tuple[str, wire.Message]] = field(default_factory=list)
    attempt: int = 0
    expelled: list[str] = field(default_factory=list)
    """Connections that must not be heard any more."""

    def __post_init__(self) -> None:
        Payload.live_count = 0
        self.now_ns = 0
        self.core = SwitchCore(
            job=JOB, incarnation=1, children=[1 << rank for rank in range(WORLD)],
            limits=self.limits, retry=RETRY,
        )  # fmt: skip
        description = DESCRIPTION
        for rank in range(WORLD):
            hello = self.of(
                wire.Hello, rank, generation=0, protocol=PROTOCOL_VERSION, world_size=WORLD,
                contributors=1 << rank, present=1 << rank, roll=0,
                description_hash=description.hash,
            )  # fmt: skip
            self.deliver(child(rank), hello, description.to_bytes())
        self.take_parent(wire.Hello)
        self.parent_says(
            wire.Welcome, loaded=True, push_window_bytes=WINDOW_BYTES, contributors=ALL
        )
        self.windows = {m.push_window_bytes for m in self.heard(wire.Welcome)}

    # ------------------------------------------------------------------ messages

    def of(self, kind: type[Any], rank: int, **fields: Any) -> Any:
        """A message of a child."""
        stamp = {
            "job": JOB, "epoch": 0, "step": 0, "attempt": self.attempt, "role": Role.WORKER,
            "rank": rank, "incarnation": 100 + rank, "generation": 1,
        }  # fmt: skip
        return kind(**{**stamp, **fields})

    def deliver(self, peer: str, message: wire.Message, payload: Any = None) -> None:
        self._do(self.core.received(self.now_ns, peer, message, payload, payload_bytes(payload)))

    def push(
        self, rank: int, extent: int, values: Any, *, step: int = 0, part: int = 0,
        last: bool = True, weight: float = 1.0, raw: bool = False, absent: int = 0,
        dtype: str = "float32",
    ) -> None:  # fmt: skip
        """A child's contribution; None: it has no gradient. Raw: it found no slot further down."""
        push = self.of(
            wire.Push, rank, step=step, index=extent, part=part, contributors=1 << rank,
            absent=absent, weight=weight if last else 0.0, last=last, raw=raw, dtype=dtype,
        )  # fmt: skip
        self.deliver(child(rank), push, None if values is None else Payload(values.copy()))

    def parent_says(self, kind: type[Any], **fields: Any) -> None:
        message = self.of(kind, 0, role=Role.NODE, incarnation=1, **fields)
        self.deliver(PARENT, message)

    def take_parent(self, kind: type[Any] = wire.Push) -> list[tuple[Any, Any]]:
        """(message, values) of this kind that went up since the last call, without repetitions."""
        taken = [each for each in self.to_parent if isinstance(each.message, kind)]
        self.to_parent = [each for each in self.to_parent if not isinstance(each.message, kind)]
        found: dict[Any, Any] = {}
        for each in taken:
            found.setdefault(each.message, each.payload)
        return list(found.items())

    def parent_has(self, push: wire.Push) -> None:
        self.parent_says(
            wire.Received, step=push.step, index=push.index, part=push.part, verb=Verb.PUSH,
            contributors=push.contributors,
        )  # fmt: skip

    def heard(self, kind: type[Any]) -> list[Any]:
        """What children were told since the last call, of this kind."""
        return [m for _, m in self.told if isinstance(m, kind)]

    def receipts(self) -> list[tuple[str, int]]:
        """(child, extent) of the pushes that were answered since the last call."""
        found = [
            (peer, m.index) for peer, m in self.told
            if isinstance(m, wire.Received) and m.verb is Verb.PUSH
        ]  # fmt: skip
        for peer, m in self.told:
            if isinstance(m, wire.Received):
                assert child(m.contributors.bit_length() - 1) == peer
        self.told.clear()
        return found

    def _do(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    for peer in peers:
                        if peer != PARENT:
                            self.told.append((peer, message))
                            continue
                        carried = payload.read().copy() if isinstance(payload, Payload) else None
                        self.to_parent.append(Send((PARENT,), message, carried))
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Expel(peer):
                    self.expelled.append(peer)
                case Sum():
                    values = [p.read() for p in action.payloads]  # type: ignore[attr-defined]
                    total = np.empty_like(values[0])
                    sum_in_order([v.data for v in values], action.dtypes, total)
                    made = Payload(total)
                    self._do(self.core.summed(self.now_ns, action, made, total.nbytes))
                case Cache():
                    copied = action.payload.read().copy()  # type: ignore[attr-defined]
                    made = Payload(copied)
                    self._do(self.core.cached(self.now_ns, action, made, copied.nbytes))

    def tick(self, later_ns: int) -> None:
        self.now_ns += later_ns
        self._do(self.core.tick(self.now_ns))


def gradients(seed: int, count: int = WORLD) -> list[Any]:
    """Float32, of sizes that make every order of addition round differently."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.uniform(-20, 20, (count, CHUNK_BYTES // 4)))
    return list((rng.standard_normal((count, CHUNK_BYTES // 4)) * scale).astype(np.float32))


def in_rank_order(values: Sequence[Any]) -> Any:
    return functools.reduce(np.add, values)


class SwitchSuite:
    """The behaviour of a switch at one fidelity."""

    slot_count: ClassVar[int | None] = None
    has_fixed_slots: ClassVar[bool] = False

    def limits(self, slot_count: int | None) -> SwitchLimits:
        """So many slots; functional: as many bytes as they would take."""
        if self.has_fixed_slots:
            assert slot_count is not None
            return SwitchLimits(slots=PoolSize(slot_count=slot_count, slot_bytes=CHUNK_BYTES))
        if slot_count is None:
            return SwitchLimits()
        return SwitchLimits(slot_bytes_max=slot_count * WORLD * CHUNK_BYTES)

    def bench(self) -> Bench:
        return Bench(self.limits(self.slot_count))

    # ------------------------------------------------------------------ sums

    @pytest.mark.parametrize("seed", range(6))
    def test_sums_are_exact_in_rank_order(self, seed: int) -> None:
        """S1, S3. Goal: one push of all ranks, with the bits of rank order and their weights,
        however contributions arrive and how often. Method: several extents, shuffled."""
        bench, rng = self.bench(), Random(seed)
        grads = {extent: gradients(seed + extent) for extent in EXTENTS}
        arrivals = [
            (r, c) for r in range(WORLD) for c in EXTENTS for _ in range(rng.randrange(1, 4))
        ]
        rng.shuffle(arrivals)
        for rank, extent in arrivals:
            bench.push(rank, extent, grads[extent][rank], weight=(1 + rank) / 10)
        pushes = bench.take_parent()
        assert sorted(push.index for push, _ in pushes) == list(EXTENTS)
        for push, values in pushes:
            assert (push.contributors, push.raw, push.dtype) == (ALL, False, "float32")
            assert push.weight == (0.1 + 0.2) + 0.3  # 0.6 in other orders
            np.testing.assert_array_equal(values, in_rank_order(grads[push.index]))
            bench.parent_has(push)
        assert Payload.live_count == 0
        assert bench.core.raw_up.count == 0
        assert bench.core.duplicates.total() == len(arrivals) - WORLD * len(EXTENTS)
        assert set(bench.core.duplicates) <= {f"ranks {rank}" for rank in range(WORLD)}

    def test_every_child_hears_of_its_sum_once(self) -> None:
        """I6. Goal: who contributed has one receipt when the sum is out, whoever came last."""
        bench = self.bench()
        for rank, values in enumerate(gradients(1)):
            bench.push(rank, EXTENTS[0], values)
        assert sorted(bench.receipts()) == [(child(rank), EXTENTS[0]) for rank in range(WORLD)]

    @pytest.mark.parametrize("state", ["filling", "summed", "at the parent", "decided"])
    def test_a_repetition_is_answered_to_its_peer_alone(self, state: str) -> None:
        """S1, F5. Goal: a duplicate hears what it missed, nobody else does, and nothing is added.
        Method: at every stage of an extent's life."""
        bench, grads = self.bench(), gradients(2)
        for rank in range(1 if state == "filling" else WORLD):
            bench.push(rank, EXTENTS[0], grads[rank])
        if state in ("at the parent", "decided"):
            [(push, _)] = bench.take_parent()
            bench.parent_has(push)
        if state == "decided":
            bench.parent_says(wire.Decided, step=0, applied=True, norms=(1.0,))
        bench.receipts()
        bench.push(0, EXTENTS[0], grads[0])
        assert bench.receipts() == [(child(0), EXTENTS[0])]
        assert bench.core.duplicates == {"ranks 0": 1}
        for rank in range(1, WORLD) if state == "filling" else ():
            bench.push(rank, EXTENTS[0], grads[rank])
        for push, values in bench.take_parent():
            assert not push.raw
            np.testing.assert_array_equal(values, in_rank_order(grads))

    @pytest.mark.parametrize("absent", [(0,), (1, 2), (0, 1, 2)])
    def test_absent_gradients(self, absent: tuple[int, ...]) -> None:
        """S3. Goal: ranks without a gradient count as contributors and add nothing."""
        bench, grads = self.bench(), gradients(3)
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[0], None if rank in absent else grads[rank])
        [(push, values)] = bench.take_parent()
        assert (push.contributors, push.raw) == (ALL, False)
        present = [grads[rank] for rank in range(WORLD) if rank not in absent]
        if present:
            np.testing.assert_array_equal(values, in_rank_order(present))
        else:
            assert values is None
        bench.parent_has(push)
        assert Payload.live_count == 0

    def test_a_sum_of_one_goes_on_as_it_came(self) -> None:
        """I3, S1. Goal: what nothing is added to takes no more bytes upward, and has the same
        value."""
        bench, values = self.bench(), np.arange(CHUNK_BYTES // 4, dtype=np.uint16)
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[0], values if rank == 1 else None, dtype="bfloat16")
        [(push, found)] = bench.take_parent()
        assert (push.contributors, push.raw, push.dtype) == (ALL, False, "bfloat16")
        np.testing.assert_array_equal(found, values)
        bench.parent_has(push)
        assert Payload.live_count == 0

    def test_absent_segments(self) -> None:
        """S3. Goal: a sum has no gradient for a segment only if none of those in it has one; ranks
        without any gradient do not count."""
        for of_ranks, expected in (((0b11, 0b110, 0b10), 0b10), ((0b1, None, 0b1), 0b1)):
            bench, grads = self.bench(), gradients(5)
            for rank, absent in enumerate(of_ranks):
                values = None if absent is None else grads[rank]
                bench.push(rank, EXTENTS[0], values, absent=absent or 0)
            [(push, _)] = bench.take_parent()
            assert push.absent == expected
            bench.parent_has(push)

    @pytest.mark.parametrize(
        ("wrong", "payload_elems", "text"),
        [
            ({}, CHUNK_BYTES // 4 - 64, "has 4096 elements, and a push of it 16128 bytes"),
            ({"dtype": "bfloat16"}, CHUNK_BYTES // 4, "of bfloat16, expected 8192"),
            ({"dtype": ENCODED}, CHUNK_BYTES // 4, "of encoded, expected 0"),
            ({"index": 5}, CHUNK_BYTES // 4, "extent 5 is not one that is pushed"),
            ({"absent": 0b10000}, CHUNK_BYTES // 4, "has 4 segments, and a push of it lacks"),
            ({"absent": 0b1111}, CHUNK_BYTES // 4, "has 4 segments, and a push of it lacks"),
            ({"absent": 0b1}, None, "without a payload"),
            ({"contributors": 0b11}, CHUNK_BYTES // 4, "pushed for ranks 0, 1, and speaks for 1"),
            ({"contributors": 0}, CHUNK_BYTES // 4, "and speaks for 1"),
        ],
    )
    def test_a_push_of_another_form_ends_its_sender(
        self, wrong: dict[str, Any], payload_elems: int | None, text: str
    ) -> None:
        """I5, I6. Goal: what could not be summed is refused by name before it meets other ranks';
        its sender is heard no more, also if it says Hello again, and a later start of it may come.
        """
        bench, grads = self.bench(), gradients(6)
        bench.push(0, EXTENTS[0], grads[0])
        fields = {
            "index": EXTENTS[0], "part": 0, "contributors": 0b10, "absent": 0, "weight": 1.0,
            "last": True, "raw": False, "dtype": "float32",
        }  # fmt: skip
        values = None if payload_elems is None else Payload(np.zeros(payload_elems, np.float32))
        bench.deliver(child(1), bench.of(wire.Push, 1, **(fields | wrong)), values)
        [refusal] = bench.heard(wire.Refuse)
        assert text in refusal.text
        assert bench.expelled == [child(1)]
        bench.push(1, EXTENTS[0], grads[1])
        assert bench.take_parent() == [], "it is no member any more"

        hello = bench.of(
            wire.Hello, 1, protocol=PROTOCOL_VERSION, world_size=WORLD, contributors=0b10,
            present=0b10, roll=0, description_hash=DESCRIPTION.hash,
        )  # fmt: skip
        bench.told.clear()
        bench.deliver("worker-1 again", hello, DESCRIPTION.to_bytes())
        [refusal] = bench.heard(wire.Refuse)
        assert "broke the protocol" in refusal.text
        later = replace(hello, incarnation=hello.incarnation + 1)
        bench.deliver("worker-1 later", later, DESCRIPTION.to_bytes())
        assert bench.take_parent(wire.Cancel), "what it pushed before must not be used"
        assert Payload.live_count == 1

    @pytest.mark.parametrize("kind", [wire.Pull, wire.Propose])
    def test_questions_about_no_extent_end_their_sender(self, kind: type[wire.Message]) -> None:
        """I5. Goal: nothing is kept of extents that the job does not have."""
        bench = self.bench()
        fields = {"contributors": 0b10} if kind is wire.Propose else {}
        said = bench.of(kind, 1, index=5, part=0, **fields)
        bench.deliver(child(1), said, b"" if kind is wire.Propose else None)
        [refusal] = bench.heard(wire.Refuse)
        assert f"it sent {kind.__name__} of extent 5; there are 5" in refusal.text
        assert bench.expelled == [child(1)]

    def test_parts_and_steps_never_meet(self) -> None:
        """S2. Goal: two parts of an extent, and the same extent of the next step, have sums of
        their own, though their contributions come mixed."""
        bench = self.bench()
        places = [(0, 0), (0, 1), (1, 0)]
        grads = {place: gradients(10 + index) for index, place in enumerate(places)}
        for rank in range(WORLD):
            for step, part in places:
                last = (step, part) != (0, 0)
                bench.push(
                    rank, EXTENTS[0], grads[step, part][rank], step=step, part=part, last=last
                )  # fmt: skip
        # In fixed slots two of them may have one place: then one is raw, and summed at the node.
        sums: dict[tuple[int, int], list[Any]] = {}
        for push, values in bench.take_parent():
            sums.setdefault((push.step, push.part), []).append((push.contributors, values))
        assert sorted(sums) == sorted(places)
        for place, found in sums.items():
            ordered = [values for _, values in sorted(found, key=lambda each: each[0])]
            assert functools.reduce(lambda a, b: a | b, (c for c, _ in found)) == ALL
            np.testing.assert_array_equal(in_rank_order(ordered), in_rank_order(grads[place]))

    # ------------------------------------------------------------------ no slot

    def test_an_extent_without_a_slot_goes_on_raw(self) -> None:
        """S5. Goal: with room for one extent, those that find none travel singly, all of each or
        nothing, are counted, and the node's sum has the same bits.
        Method: the first rank is ahead with all extents, the others follow from the last on."""
        bench = Bench(self.limits(1))
        grads = {extent: gradients(20 + extent) for extent in EXTENTS}
        for rank in range(WORLD):
            for extent in EXTENTS if rank == 0 else reversed(EXTENTS):
                bench.push(rank, extent, grads[extent][rank])
        found: dict[int, dict[int, Any]] = {}
        while pushes := bench.take_parent():  # the window opens as the parent answers
            for push, values in pushes:
                found.setdefault(push.index, {})[push.contributors] = values
                assert push.raw is (push.contributors != ALL)
                bench.parent_has(push)
        raw = [extent for extent, parts in found.items() if len(parts) > 1]
        assert sorted(found) == list(EXTENTS)
        assert 0 < len(raw) < len(EXTENTS)
        assert bench.core.raw_up.count == WORLD * len(raw)
        for extent, parts in found.items():
            assert sorted(parts) == ([1, 2, 4] if extent in raw else [ALL])
            np.testing.assert_array_equal(
                in_rank_order([parts[key] for key in sorted(parts)]), in_rank_order(grads[extent])
            )
        assert Payload.live_count == 0

    def test_an_extent_that_loses_its_slot_goes_on_raw_as_a_whole(self) -> None:
        """S5, I6. Goal: what a slot held when a raw contribution came for its extent travels
        singly too, each once; every child has heard of its own, and the slot is free for others."""
        bench, grads = Bench(self.limits(1)), gradients(8)
        bench.push(0, EXTENTS[0], grads[0])
        bench.push(2, EXTENTS[0], grads[2], raw=True)
        bench.push(1, EXTENTS[0], grads[1])
        found = {}
        while pushes := bench.take_parent():
            for push, values in pushes:
                assert push.raw
                assert push.contributors not in found
                found[push.contributors] = values
                bench.parent_has(push)
        for rank in range(WORLD):
            np.testing.assert_array_equal(found[1 << rank], grads[rank])
        assert sorted(set(bench.receipts())) == [(child(rank), EXTENTS[0]) for rank in range(WORLD)]
        assert bench.core.raw_up.count == WORLD
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[2], grads[rank])
        [(push, _)] = bench.take_parent()
        assert (push.index, push.contributors, push.raw) == (EXTENTS[2], ALL, False)
        bench.parent_has(push)
        assert Payload.live_count == 0

    # ------------------------------------------------------------------ attempts

    def test_an_abort_leaves_nothing(self) -> None:
        """I1. Goal: a new attempt forgets what was held, what is late of the old one adds nothing,
        and the same extent can be summed again."""
        bench, old, new = self.bench(), gradients(4), gradients(5)
        bench.push(0, EXTENTS[0], old[0])
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[1], old[rank])
        bench.take_parent()
        late = bench.of(
            wire.Push, 1, index=EXTENTS[0], part=0, contributors=2, absent=0, weight=1.0, last=True,
            raw=False, dtype="float32",
        )  # fmt: skip
        bench.attempt = 1
        bench.parent_says(wire.Abort, loaded=True, contributors=ALL, text="asked by the test")
        assert Payload.live_count == 0
        bench.deliver(child(1), late, Payload(old[1].copy()))
        assert bench.take_parent() == []
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[0], new[rank])
        [(push, values)] = bench.take_parent()
        np.testing.assert_array_equal(values, in_rank_order(new))
        assert push.attempt == 1

    def test_a_cancel_outlives_the_skip_of_a_step(self) -> None:
        """I3, I6. Goal: a rank that was started again is welcomed by the new attempt alone; what
        was asked for it while a step was being skipped is asked for again: the skip gives up
        weights, not what was pushed. Method: the skip comes before the abort."""
        bench = self.bench()
        hello = bench.core.children.members.first
        assert hello is not None
        later = replace(hello, incarnation=500, rank=0, contributors=1)
        bench.told.clear()
        bench.deliver(child(0), later, bench.core.children.members.description)
        assert bench.heard(wire.Welcome) == []
        assert [m.attempt for m, _ in bench.take_parent(wire.Cancel)] == [0]
        bench.attempt = 1
        bench.parent_says(wire.Verdict, applied=False, norms=(0.0,))
        [(cancel, _)] = bench.take_parent(wire.Cancel)
        assert cancel.attempt == 1
        assert "ranks 0 were started again" in cancel.text

    def test_a_switch_started_again_knows_nobody(self) -> None:
        """I1. Goal: it holds nothing of what its children say and asks them to join again."""
        bench = self.bench()
        bench.core = SwitchCore(
            job=JOB, incarnation=2, children=[1, 2, 4], limits=bench.limits, retry=RETRY
        )
        bench.push(0, EXTENTS[0], gradients(6)[0])
        assert [type(m) for _, m in bench.told[-1:]] == [wire.Rejoin]
        assert Payload.live_count == 0

    def test_a_sum_is_repeated_until_the_parent_has_it(self) -> None:
        """I6. Goal: a sum, or its receipt, that was lost comes again, with the same bits."""
        bench, grads = self.bench(), gradients(7)
        for rank in range(WORLD):
            bench.push(rank, EXTENTS[0], grads[rank])
        [(first, _)] = bench.take_parent()
        bench.tick(RETRY.first_ns)
        [(again, values)] = bench.take_parent()
        assert again == first
        np.testing.assert_array_equal(values, in_rank_order(grads))
        bench.parent_has(first)
        bench.tick(RETRY.most_ns * 4)
        assert bench.take_parent() == []
