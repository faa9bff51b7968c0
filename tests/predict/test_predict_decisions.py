"""A decision of a core that is changed changes every played prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.predict.ask.question import make_question
from luwu.predict.driven.driven import Playing, play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.systems.in_network import OptimizerNodes


def question(catalogue: Catalogue) -> Any:
    node = {"processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 12}
    return make_question(
        {
            "system": "luwu", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
            "software": "deepspeed-2023", "devices": 8, "sequence": 2048, "batch": 32,
            "micro_batch": 4, "recompute": "full", "node": {**node, "cached": 1.0},
        },
        catalogue,
    )  # fmt: skip


def test_extents_change_no_bytes_of_hosts_that_are_not_here(catalogue: Catalogue) -> None:
    """Goal: what drives, memory and links move is the same with extents; a page is still what is
    read and written. Method: half of a state on drives, chunks of 128 MiB, two by two."""
    asked = question(catalogue)
    assert isinstance(asked.part, OptimizerNodes)
    nodes = replace(asked.part, cached=0.5)
    own, fewer = (
        play_driven_steps(
            asked.job, nodes, Playing(chunk_bytes=1 << 27, extent_chunks=count, steps=2, workers=1)
        )
        for count in (1, 2)
    )
    for engine in ("up", "down", "disk read", "disk write"):
        assert fewer.record.amount(engine) == pytest.approx(own.record.amount(engine), rel=1e-5)
    pages = [len(played.record.of("disk read")) for played in (own, fewer)]
    assert pages[0] == pages[1]
    sent = [len(played.record.of("up")) for played in (own, fewer)]
    assert sent[0] == 2 * sent[1]
    assert fewer.step_s == pytest.approx(own.step_s, rel=0.01)
