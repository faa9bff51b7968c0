"""The encodings of a worker's core alone: gradients between a push and what travels."""

from __future__ import annotations

from typing import Any

import pytest

from luwu.aggregate import Aggregator, Float32
from luwu.aggregate.interface import ENCODED
from luwu.aggregate.shared_exponent import SharedExponent
from luwu.base.errors import RemoteProtocolError
from luwu.nic.core.actions import Encode, Gradient, Measure
from luwu.nic.core.encoding import Encodings
from luwu.protocol.actions import Send
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import check, from_parent, gradient, make_ends, receipt

NO_PAYLOAD = gradient(4, payload=None)


class AsItIs(Float32):
    """Of another package: encoded, and nothing is asked first."""

    is_plain = False


class Bench:
    """Encodings of an aggregator, and one push of extent 4."""

    def __init__(self, aggregator: Aggregator) -> None:
        self.outbox, self.uplink = make_ends()
        self.encodings = Encodings(self.outbox, self.uplink)
        self.encodings.aggregator = aggregator

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
    return Bench(SharedExponent(2))


def agreed(answer: bytes) -> tuple[Any, bytes]:
    return from_parent(wire.Agreed, part=0, index=4), answer


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


def test_a_gradient_that_needs_no_agreement_is_encoded_at_once() -> None:
    """Goal: an aggregator that asks nothing first, as another package may bring, waits for none."""
    bench = Bench(AsItIs(2))
    push = bench.push()
    bench.check(
        (lambda: None, None, ["Encode (Push 0.0.4) g4 b''"]),
        ((bench.encodings.encoded, (Encode(push, "g4", b""), "e4", 9)), None, ["Push 0.0.4 e4"]),
        ((bench.encodings.received, (receipt(Verb.PUSH, index=4),)), None, ["Drop g4"]),
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
