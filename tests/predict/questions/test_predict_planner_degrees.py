"""Plans' degrees: all that the rules of plan.py say, and no others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import make_training_question
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.model.job import TrainingJob
from luwu.predict.plan import configurations, plan, plan_document, plan_text

DENSE: dict[str, Any] = {
    "model": "Llama3-405B", "device": "H100-80", "network": "ib-ndr", "software": "nemo-2024",
    "devices": 512, "sequence": 8192, "batch": 256, "systems": ["3d"],
}  # fmt: skip
EXPERTS: dict[str, Any] = {**DENSE, "model": "Mixtral-8x7B", "devices": 16, "batch": 32}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load()


def jobs_of(table: dict[str, Any], catalogue: Catalogue) -> list[TrainingJob]:
    """That a plan tries."""
    return [make_training_question(e, catalogue).job for e in configurations(table, catalogue)]


@pytest.mark.parametrize("sequence", [4096, 8192, 16384])
def test_predict_laws_degrees_are_all_that_the_rules_say(
    catalogue: Catalogue, sequence: int
) -> None:
    """Goal: the search is what is left of all degrees, tried one by one, when those are left out
    that cannot be and that the rules leave out; none is tried twice."""
    found = jobs_of({**EXPERTS, "sequence": sequence}, catalogue)
    base = replace(found[0], micro_batch=1, recompute="none")
    expected = []
    for t, p, v, c, e, ends in itertools.product(
        (1, 2, 4, 8), range(1, 17), range(1, 35), (1, 2, 4, 8), (1, 2, 4, 8), (False, True)
    ):
        layers = 32 + 2 * ends
        if layers % (p * v) or (v > 1 and p == 1) or (ends and 32 % (p * v) == 0):
            continue
        if c > 1 and sequence / c < 4096:
            continue
        for width in {t, 1} if e > 1 else {t}:
            own = {"tensor": t, "pipeline": p, "virtual": v, "context": c, "expert": e,
                   "expert_tensor": None if width == t else width, "ends_as_layers": ends,
                   "sequence_parallel": t > 1}  # fmt: skip
            expected += _possible(base, own)
    alone = [job for job in found if job.micro_batch == 1 and job.recompute == "none"]
    assert len(set(map(repr, found))) == len(found)
    assert sorted(map(repr, alone)) == sorted(map(repr, expected))


def _possible(base: TrainingJob, own: dict[str, Any]) -> list[TrainingJob]:
    try:
        return [replace(base, **own)]
    except ConfigError:
        return []


def test_predict_laws_degrees_that_cannot_matter_are_not_tried(catalogue: Catalogue) -> None:
    """Goal: no ranks of a short sequence, no experts of a dense model, nothing but data of ZeRO."""
    for job in jobs_of({**DENSE, "sequence": 4096, "systems": ["3d", "zero3"]}, catalogue):
        assert (job.context, job.expert, job.expert_tensor) == (1, 1, None)
        parts = job.pipeline * job.virtual
        assert job.ends_as_layers == (126 % parts != 0)
    shared = {job.context for job in jobs_of({**DENSE, "sequence": 131_072}, catalogue)}
    assert shared == {1, 2, 4, 8}  # eight devices share a domain


def test_predict_laws_long_sequences_need_ranks_that_share_them(catalogue: Catalogue) -> None:
    """Goal: of 131,072 tokens, none of what fits does without context parallel ranks; stages of
    128 layers' places are found, as 126 layers have too few divisors."""
    found = plan({**DENSE, "sequence": 131_072, "batch": 64}, catalogue)
    assert all(each.question.job.context > 1 for each in found.best)
    assert all(each.question.job.ends_as_layers for each in found.best)
    text = plan_text(found)
    assert " c8 ends, 1, full" in text
    asked = plan_document(found)["best"][0]["asked"]
    assert asked["context"] == 8
    assert asked["ends_as_layers"] is True
