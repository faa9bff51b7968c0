"""The attachments of a worker's core alone: sent with a step until it is decided."""

from __future__ import annotations

from luwu.nic.core.attachments import Attachments
from luwu.protocol.actions import Send
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import CONTRIBUTORS, WINDOW_BYTES, check, make_ends, receipt


def make() -> tuple[Attachments, Outbox, Uplink]:
    outbox, uplink = make_ends()
    return Attachments(outbox, uplink), outbox, uplink


def test_every_piece_is_sent_until_the_parent_has_it() -> None:
    """Goal: pieces fill the window as gradients do; the receipt of another rank's piece, which a
    switch passes to all its children, counts for nothing."""
    attachments, outbox, uplink = make()
    large = b"." * WINDOW_BYTES
    own = receipt(Verb.KEEP, index=0, contributors=CONTRIBUTORS)
    other = receipt(Verb.KEEP, index=0, contributors=1)
    check(outbox, [
        ((attachments.attach, (0, [large, b"b"])), None, [f"Keep 0.0.0 {large!r}"]),
        ((attachments.received, (other,)), None, []),
        ((attachments.received, (own,)), None, [f"Drop {large!r}", "Keep 0.0.1 b'b'"]),
    ])  # fmt: skip
    assert len(uplink) == 1


def test_a_piece_names_its_rank_and_their_number() -> None:
    """Goal: the node stores an attachment when it has all pieces of all ranks."""
    attachments, outbox, _ = make()
    attachments.attach(4, [b"a", b"b"])
    sent = [each.message for each in outbox.take() if isinstance(each, Send)]
    found = [(m.step, m.index, m.pieces, m.contributors) for m in sent]
    assert found == [(4, 0, 2, CONTRIBUTORS), (4, 1, 2, CONTRIBUTORS)]


def test_a_later_part_is_done_when_the_parent_has_stored_it() -> None:
    """Goal: it is of a decided step, and the receipt of that step's piece says nothing of it."""
    attachments, outbox, _ = make()
    piece, late = (
        receipt(Verb.KEEP, part=part, index=0, contributors=CONTRIBUTORS) for part in range(2)
    )
    check(outbox, [
        ((attachments.attach, (0, [b"late"], 1, 77)), None, ["Keep 0.1.0 b'late'"]),
        ((attachments.received, (piece,)), None, []),
        ((attachments.received, (late,)), None, ["Drop b'late'", "Done 77"]),
        ((attachments.received, (late,)), None, []),
        (attachments.repeat, None, []),
    ])  # fmt: skip


def test_attachments_of_undecided_steps_are_sent_again() -> None:
    """Goal: after a skipped step under the new attempt; not after a decision, nor after an abort,
    which makes the step be computed again."""
    attachments, outbox, uplink = make()
    attachments.attach(0, [b"0"])
    attachments.attach(1, [b"1"])
    uplink.forget()
    outbox.take()
    outbox.attempt = 2
    check(outbox, [
        ((attachments.decided, (0,)), None, []),
        (attachments.repeat, None, ["Keep 1.0.0 b'1' @2"]),
        (attachments.clear, None, []),
        (attachments.repeat, None, []),
    ])  # fmt: skip
