"""Messages that came by several connections: their order, and what a connection announces."""

from __future__ import annotations

import random

import pytest

from luwu.base.limits import STRIPES_MAX
from luwu.transport import Delivery
from luwu.transport.lanes import TURN_BYTES
from luwu.transport.stripes import Announced, InOrder, announcement, read_announcement
from tests.suites.transport_waits import MIB
from tests.unit.transports import LINK_ID


def sent_in_turns(rng: random.Random, count: int, stripes: int) -> list[list[Delivery]]:
    """Numbered messages of many sizes, each on the stripe that a sender would use."""
    found: list[list[Delivery]] = [[] for _ in range(stripes)]
    turn = turn_bytes = 0
    for number in range(count):
        size = rng.choice([None, 0, 1, 5_000, TURN_BYTES - 1, TURN_BYTES, 3 * TURN_BYTES])
        buffers = [] if size is None else [memoryview(bytes(size))]
        header = b"%d" % number
        found[turn].append(Delivery("", header, buffers))
        turn_bytes += len(header) + (size or 0)
        if turn_bytes >= TURN_BYTES:
            turn, turn_bytes = (turn + 1) % stripes, 0
    return found


class TestInOrder:
    @pytest.mark.parametrize("seed", range(20))
    def test_the_order_does_not_depend_on_which_stripe_is_faster(self, seed: int) -> None:
        """T2. Goal: messages come out as they were sent, each as early as it can be. Method: any
        merge of the stripes; in half of the cases one stripe ends early."""
        rng = random.Random(seed)
        stripes = rng.randint(2, STRIPES_MAX)
        sent = sent_in_turns(rng, 300, stripes)
        lost = rng.randrange(2 * stripes)
        if lost < stripes:
            del sent[lost][len(sent[lost]) // 2 :]
        messages = InOrder(stripes, held_bytes_max=1 << 40)
        got = []
        places = [0] * stripes
        for index in rng.sample(
            [i for i, each in enumerate(sent) for _ in each], k=sum(map(len, sent))
        ):
            messages.put(index, sent[index][places[index]])
            places[index] += 1
            while (delivery := messages.take()) is not None:
                got.append(int(delivery.header))
        assert got == list(range(len(got)))
        assert not messages.are_too_many
        if lost < stripes:
            assert not messages.is_over
            messages.end(lost)
            assert messages.is_over
        else:
            assert len(got) == 300

    def test_what_is_ahead_is_bounded(self) -> None:
        """T5. Goal: bytes ahead of their turn count, those in order do not."""
        messages = InOrder(2, held_bytes_max=MIB)
        for _ in range(10):
            messages.put(0, Delivery("", b"h", [memoryview(bytes(MIB))]))
            assert messages.take() is not None
            assert not messages.are_too_many
            messages.put(1, Delivery("", b"h", [memoryview(bytes(MIB))]))
            assert messages.take() is not None
        messages.put(1, Delivery("", b"h", [memoryview(bytes(MIB))]))
        assert messages.are_too_many
        empty = InOrder(2, held_bytes_max=MIB)
        for _ in range(5_000):
            empty.put(1, Delivery("", b"h", []))
        assert empty.are_too_many  # a message takes more than its bytes

    def test_announcements(self) -> None:
        """Goal: what is announced is read; what cannot be is no announcement."""
        for announced in (Announced(LINK_ID, 0, 2), Announced(LINK_ID, 7, STRIPES_MAX)):
            assert read_announcement(announcement(announced)) == announced
        for index, count in ((0, 0), (0, 1), (2, 2), (0, STRIPES_MAX + 1)):
            assert read_announcement(announcement(Announced(LINK_ID, index, count))) is None
        good = announcement(Announced(LINK_ID, 0, 2))
        for bad in (b"", good[:-1], good + b"\0", b"L" + good[1:]):
            assert read_announcement(bad) is None
