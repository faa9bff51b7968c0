"""Statements of all children, folded into one or told apart."""

from __future__ import annotations

from itertools import permutations

import pytest

from switch_emu.switch.core.folds import DisagreementError, Fold

CHILDREN = (0b0011, 0b0100, 0b1000)


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_agreement_carries_the_bytes_of_rank_0(order: tuple[int, ...]) -> None:
    """Goal: the last one completes it, in any order, and rank 0's bytes travel on."""
    fold = Fold("hyper-parameters of step 3", CHILDREN)
    agreed = [fold.state(child, "same", f"bytes of {child}".encode()) for child in order]
    assert agreed == [False, False, True]
    assert fold.payload == b"bytes of 3"


def test_a_repetition_completes_nothing() -> None:
    """Goal: one child cannot speak for another by repeating itself."""
    fold = Fold("hyper-parameters of step 3", CHILDREN)
    for _ in range(5):
        assert not fold.state(CHILDREN[0], "same", b"x")
    assert not fold.state(CHILDREN[1], "same", b"y")


@pytest.mark.parametrize("order", list(permutations(CHILDREN)))
def test_disagreement_names_the_ranks(order: tuple[int, ...]) -> None:
    """I6. Goal: who said what, in rank order, whoever came last."""
    fold = Fold("hyper-parameters of step 3", CHILDREN)
    texts = {0b0011: "lr 0.1", 0b0100: "lr 0.2", 0b1000: "lr 0.1"}
    with pytest.raises(DisagreementError) as caught:
        for child in order:
            fold.state(child, texts[child], b"")
    assert (
        fold.refusal
        == str(caught.value)
        == (
            "the hyper-parameters of step 3 differ between ranks "
            "(ranks 0, 1, 3: lr 0.1; ranks 2: lr 0.2); every rank must use the same, "
            "and must have frozen the same parameters"
        )
    )


def test_disagreement_of_many_stays_short() -> None:
    """I5. Goal: a thousand ranks that all differ fit one refusal."""
    children = [1 << rank for rank in range(1024)]
    fold = Fold("hyper-parameters of step 3", children)
    with pytest.raises(DisagreementError) as caught:
        for rank, child in enumerate(children):
            fold.state(child, f"{rank % 5} and a long hash of it" * 3, b"")
    assert len(str(caught.value)) < 700
