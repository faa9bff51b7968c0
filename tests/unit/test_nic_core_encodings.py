"""The encodings of a worker's core alone: gradients between a push and what travels."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.aggregate import make_aggregator
from luwu.aggregate.interface import ENCODED
from luwu.base.errors import RemoteProtocolError
from luwu.nic.core.actions import Encode, Gradient, Measure
from luwu.nic.core.encoding import Encodings
from luwu.protocol.actions import Send
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import check, from_parent, gradient, make_ends, receipt

RAW = wire.RESENT_PART
NO_PAYLOAD = gradient(4, payload=None)


class Bench:
    """Encodings of an aggregator, and one push of extent 4."""

    def __init__(self, aggregator: str) -> None:
        self.outbox, self.uplink = make_ends()
        self.encodings = Encodings(self.outbox, self.uplink)
        self.encodings.aggregator = make_aggregator(aggregator, 2)

    def push(self, entry: Gradient | None = None) -> wire.Push:
        """Push a gradient; the message that would carry it as it is."""
        push: wire.Push = from_parent(wire.Push, part=0, index=4, dtype="float32")
        self.encodings.push(push, entry or gradient(4))
        return push

    def check(self, *triples: Any) -> None:
        """As `nic_parts.check`."""
        check(self.outbox, triples)


@pytest.fixture
def asking() -> Bench:
    """All ranks propose before they encode."""
    return Bench("shared-exponent")


@pytest.fixture
def overflowing() -> Bench:
    """Sums may overflow."""
    return Bench("fixed-scale")


def agreed(answer: bytes) -> tuple[Any, bytes]:
    return from_parent(wire.Agreed, part=0, index=4), answer


def confirmed(*, fits: bool) -> Any:
    return from_parent(wire.Confirmed, part=0, index=4, fits=fits)


def test_a_gradient_is_measured_agreed_on_encoded_and_sent(asking: Bench) -> None:
    """Goal: the stages in order; the gradient itself is dropped when the push is received."""
    push = asking.push()
    measure, encode = Measure(push, "g4"), Encode(push, "g4", b"xy")
    encodings = asking.encodings
    asking.check(
        (lambda: None, None, ["Measure (Push 0.0.4) g4"]),
        ((encodings.measured, (measure, b"ab")), None, ["Propose 0.0.4 b'ab'"]),
        ((encodings.agreed, agreed(b"xy")), None, ["Encode (Push 0.0.4) g4 b'xy'"]),
        ((encodings.agreed, agreed(b"xy")), None, []),
        ((encodings.encoded, (encode, "e4", 9)), None, ["Push 0.0.4 e4"]),
        ((encodings.received, (receipt(Verb.PUSH, index=4),)), None, ["Drop g4"]),
        ((encodings.received, (receipt(Verb.PUSH, index=4),)), None, []),
    )


def test_an_encoded_push_names_its_form(asking: Bench) -> None:
    """Goal: the parent knows what it sums."""
    push = asking.push()
    asking.encodings.encoded(Encode(push, "g4", b""), "e4", 9)
    [_, sent] = asking.outbox.take()
    assert isinstance(sent, Send)
    assert isinstance(sent.message, wire.Push)
    assert sent.message.dtype == ENCODED


def test_a_rank_without_a_gradient_takes_part_in_each_stage(asking: Bench) -> None:
    """Goal: the others do not wait for it; whatever is agreed on, its push is empty."""
    asking.push(NO_PAYLOAD)
    asking.check(
        (lambda: None, None, ["Propose 0.0.4 b''"]),
        ((asking.encodings.agreed, agreed(b"xy")), None, ["Push 0.0.4"]),
        ((asking.encodings.received, (receipt(Verb.PUSH, index=4),)), None, []),
    )


def test_an_answer_of_another_size_is_an_error_of_the_parent(asking: Bench) -> None:
    """I7. Goal: it is refused before anything is encoded with it."""
    push = asking.push()
    asking.encodings.measured(Measure(push, "g4"), b"ab")
    with pytest.raises(RemoteProtocolError, match="another layout"):
        asking.encodings.agreed(*agreed(b"xyz"))


def test_a_sum_that_fits_drops_the_gradient(overflowing: Bench) -> None:
    """Goal: the gradient is stored until then, as it may have to be sent."""
    push, encodings = overflowing.push(), overflowing.encodings
    overflowing.check(
        (lambda: None, None, ["Encode (Push 0.0.4) g4 b''"]),
        ((encodings.encoded, (Encode(push, "g4", b""), "e4", 9)), None, ["Push 0.0.4 e4"]),
        ((encodings.received, (receipt(Verb.PUSH, index=4),)), None, ["Confirm 0.0.4"]),
        ((encodings.confirmed, (confirmed(fits=True),)), None, ["Drop g4"]),
        ((encodings.confirmed, (confirmed(fits=True),)), None, []),
    )
    assert encodings.resent_count == 0


def test_a_gradient_whose_sum_overflowed_is_pushed_raw(overflowing: Bench) -> None:
    """Goal: as it was, under a part of its own, and once."""
    overflowing.push()
    overflowing.outbox.take()
    again = (overflowing.encodings.confirmed, (confirmed(fits=False),))
    overflowing.check((again, None, [f"Push 0.{RAW}.4 g4"]), (again, None, []))
    assert overflowing.encodings.resent_count == 1


def test_a_verdict_confirms_all_pushes_of_its_step(overflowing: Bench) -> None:
    """Goal: what waits for a confirmation that was lost is dropped; later steps are not."""
    overflowing.push()
    later: wire.Push = from_parent(wire.Push, 1, part=0, index=5)
    overflowing.encodings.push(later, gradient(5))
    overflowing.outbox.take()
    overflowing.encodings.received(receipt(Verb.PUSH, index=4))
    overflowing.check(
        (lambda: len(overflowing.uplink), 1, ["Confirm 0.0.4"]),
        ((overflowing.encodings.judged, (0,)), None, ["Drop g4"]),
        (lambda: len(overflowing.uplink), 0, []),
        (overflowing.encodings.clear, None, ["Drop g5"]),
    )


def test_what_is_encoded_after_its_attempt_is_dropped(asking: Bench) -> None:
    """Goal: a shell may be slow; neither its statement nor its encoding travels, also if the same
    extent was pushed again meanwhile."""
    old, encodings = asking.push(), asking.encodings
    asking.check((lambda: None, None, ["Measure (Push 0.0.4) g4"]))
    asking.check((encodings.clear, None, ["Drop g4"]))
    asking.push(gradient(4, payload="new"))
    asking.check(
        (lambda: None, None, ["Measure (Push 0.0.4) new"]),
        ((encodings.measured, (Measure(old, "g4"), b"ab")), None, []),
        ((encodings.encoded, (Encode(old, "g4", b""), "e4", 9)), None, ["Drop e4"]),
    )
