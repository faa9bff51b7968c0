"""The requests of a worker's core alone: loads, pulls and pushes until all is answered."""

from __future__ import annotations

from typing import Any

from luwu.nic.core.requests import Requests
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from tests.unit.nic_parts import check, from_parent, gradient, make_ends, receipt


def make() -> tuple[Requests, Outbox]:
    outbox, uplink = make_ends()
    return Requests(outbox, uplink), outbox


def weights(requests: Requests, step: int, extent: int) -> Any:
    """The event: weights of an extent are received."""
    message = from_parent(wire.Weights, step, part=0, index=extent, in_place=True)
    return requests.weights, (message, f"w{extent}")


def test_a_pull_is_done_with_its_last_extent() -> None:
    """Goal: each extent fills its handle once; the same extent again is dropped."""
    requests, outbox = make()
    check(outbox, [
        ((requests.pull, (1, 0, 0, [4, 5])), None, ["Pull 0.0.4 x2"]),
        (weights(requests, 0, 5), None, ["Fill 1 5 w5 True"]),
        (weights(requests, 0, 5), None, ["Drop w5"]),
        (weights(requests, 0, 4), None, ["Fill 1 4 w4 True", "Done 1"]),
    ])  # fmt: skip


def test_a_pull_waits_for_the_verdict_of_the_step_before() -> None:
    """Goal: weights that streamed ahead may be used only once the step is judged."""
    requests, outbox = make()
    check(outbox, [
        ((requests.pull, (1, 1, 0, [4])), None, ["Pull 1.0.4"]),
        (weights(requests, 1, 4), None, ["Fill 1 4 w4 True"]),
        ((requests.judged, (0,)), None, ["Done 1"]),
    ])  # fmt: skip


def test_a_pull_two_steps_ahead_is_sent_when_the_step_between_is_decided() -> None:
    """Goal: the parent could not serve it earlier."""
    requests, outbox = make()
    check(outbox, [((requests.pull, (1, 2, 0, [4])), None, [])])
    outbox.step = 1
    check(outbox, [
        (requests.decided, None, ["Pull 2.0.4"]),
        ((requests.pull, (2, 2, 1, [4])), None, ["Pull 2.1.4"]),
    ])  # fmt: skip


def test_a_load_is_done_when_all_its_chunks_are_received() -> None:
    """Goal: chunks wait for the parent's window, and a receipt of what was not sent yet, which is
    for a former start of this rank, counts for nothing."""
    requests, outbox = make()
    check(outbox, [
        ((requests.load, (1, [gradient(0), gradient(1)])), None, ["Load 0.0.0 g0"]),
        ((requests.receipt, (receipt(Verb.LOAD, index=1),)), None, []),
        ((requests.receipt, (receipt(Verb.LOAD, index=0),)), 1, ["Drop g0", "Load 0.0.1 g1"]),
        ((requests.received, (1, 0)), None, []),
        ((requests.receipt, (receipt(Verb.LOAD, index=1),)), 1, ["Drop g1"]),
        ((requests.received, (1, 1)), None, ["Done 1"]),
    ])  # fmt: skip


def test_a_request_of_nothing_is_done_at_once() -> None:
    """Goal: a unit without trainable extents does not wait for ever."""
    requests, outbox = make()
    check(outbox, [
        ((requests.load, (1, [])), None, ["Done 1"]),
        ((requests.pull, (2, 0, 0, [])), None, ["Done 2"]),
    ])  # fmt: skip


def test_after_a_skipped_step_all_weights_are_requested_again() -> None:
    """Goal: weights that came before are void, those of pulls that are not done too."""
    requests, outbox = make()
    check(outbox, [
        ((requests.pull, (1, 1, 0, [4, 5])), None, ["Pull 1.0.4 x2"]),
        (weights(requests, 1, 4), None, ["Fill 1 4 w4 True"]),
    ])  # fmt: skip
    outbox.attempt = 2
    check(outbox, [
        (requests.repeat, None, ["Pull 1.0.4 x2 @2"]),
        (weights(requests, 1, 5), None, ["Fill 1 5 w5 True"]),
        ((requests.judged, (0,)), None, []),
        (weights(requests, 1, 4), None, ["Fill 1 4 w4 True", "Done 1"]),
    ])  # fmt: skip


def test_answers_of_a_forgotten_pull_are_dropped() -> None:
    """Goal: nothing is filled after a handle was forgotten; to forget it twice does no harm."""
    requests, outbox = make()
    check(outbox, [
        ((requests.pull, (1, 0, 0, [4])), None, ["Pull 0.0.4"]),
        ((requests.forget, (1,)), None, []),
        ((requests.forget, (1,)), None, []),
        (weights(requests, 0, 4), None, ["Drop w4"]),
    ])  # fmt: skip


def test_a_new_attempt_voids_every_handle() -> None:
    """Goal: no handle of the older attempt is filled or done."""
    requests, outbox = make()
    check(outbox, [
        ((requests.pull, (1, 0, 0, [4])), None, ["Pull 0.0.4"]),
        ((requests.clear, (2,)), None, []),
        (weights(requests, 0, 4), None, ["Drop w4"]),
        ((requests.judged, (3,)), None, []),
    ])  # fmt: skip


def test_people_are_shown_the_first_answer_that_is_missing() -> None:
    """Goal: a wait that takes long can be explained."""
    requests, _ = make()
    assert requests.waits_for() == ""
    requests.pull(1, 3, 2, [4])
    assert requests.waits_for() == "", "it is too early to request this"
    requests.pull(2, 1, 2, [4])
    assert requests.waits_for() == "weights for the pull of step 1, extent 4, part 2"
    requests.forget(2)
    requests.load(3, [gradient(6)])
    assert requests.waits_for() == "a receipt for the load of step 0, chunk 6, part 0"
