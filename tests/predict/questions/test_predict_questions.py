"""Questions as users write them, and what is answered: `luwu predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import Catalogue, load

MINE = """
[processor.some]
cores_count = 26
memory_rate = "188 GB/s"
"""
THREE_D: dict[str, Any] = {
    "system": "3d", "model": "GPT-175B", "device": "H100-80", "network": "ib-ndr",
    "software": "nemo-2024", "devices": 512, "sequence": 2048, "batch": 1024, "tensor": 4,
    "pipeline": 8, "virtual": 12, "sequence_parallel": True,
}  # fmt: skip
HOST = {
    "processor": "some", "memory_bytes": "512 GiB", "disk": "P5510-3.84T", "disks": 12,
}  # fmt: skip
SMALL = {
    "model": "GPT-13B", "device": "A100-40", "network": "roce-100g", "software": "megatron-2023",
    "devices": 8, "sequence": 2048, "batch": 64, "micro_batch": 8, "recompute": "full",
}  # fmt: skip
LUWU: dict[str, Any] = {"system": "luwu", **SMALL, "node": HOST}
OFFLOAD: dict[str, Any] = {"system": "zero-infinity", **SMALL, "host": {**HOST, "devices": 1}}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    file.write_text(MINE)
    return file


@pytest.fixture
def catalogue(own: Path) -> Catalogue:
    return load(own)


@pytest.mark.parametrize(
    "table",
    [THREE_D, LUWU, OFFLOAD, {"system": "zero3", **SMALL},
     {**OFFLOAD, "system": "zero-offload"}],
    ids=lambda table: table["system"],
)  # fmt: skip
def test_every_system_is_answered(catalogue: Catalogue, table: dict[str, Any]) -> None:
    """Goal: one form of answer for all: parts that add up, what binds, memory, and two counts of
    operations."""
    found = answer(make_question(table, catalogue))
    assert found["step_s"] == pytest.approx(sum(found["parts_s"].values()))
    assert found["binding"] in found["parts_s"] | found["resources_s"]
    assert 0 < found["mfu"] <= found["hfu"] < 1
    assert found["tokens_per_s"] == pytest.approx(found["tokens"] / found["step_s"])
    assert set(found["memory_bytes"]) == {"states", "activations"}
    assert found["asked"]["model"] == table["model"]
    json.dumps(found)


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        (THREE_D, {"system": "zero4"}, r"system: 'zero4' is not one of luwu, .*did you mean zero3"),
        (THREE_D, {"batc": 3}, r"^batc is unknown here; did you mean batch"),
        (THREE_D, {"node": {}}, r"^node is unknown here"),
        (THREE_D, {"tensor": 0}, r"^tensor: 0 is not a whole number above zero"),
        (THREE_D, {"tensor": 4.0}, r"^tensor: 4.0 is not a whole number"),
        (THREE_D, {"pipeline": 128, "virtual": 1}, r"pipeline: 128 stages, but GPT-175B has 96"),
        (THREE_D, {"model": "GPT-175"}, r"model: no model 'GPT-175' .* did you mean GPT"),
        (THREE_D, {"device": 3}, r"device: 3 is not a name"),
        (THREE_D, {"sequence_parallel": 1}, r"sequence_parallel: 1 is neither true nor false"),
        (LUWU, {"tensor": 2}, r"tensor: luwu has data parallel ranks alone"),
        (LUWU, {"node": None}, r"\[node\] is missing"),
        (LUWU, {"node": {**HOST, "cashed": 1}}, r"node.cashed is unknown .* mean cached"),
        (LUWU, {"node": {"processor": "some"}}, r"node.memory_bytes is missing"),
        (LUWU, {"node": {**HOST, "memory_bytes": 512}}, r"node.memory_bytes: 512 is not"),
        (LUWU, {"node": {**HOST, "disk": "P5510-4T"}}, r"node.disk: no disk 'P5510-4T' .* did you"),
        (OFFLOAD, {"host": HOST}, r"host.devices is missing"),
    ],
)
def test_bad_prediction_questions(
    catalogue: Catalogue, table: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    """Goal: what is wrong is named by its key, with what would fit."""
    changed = {key: value for key, value in {**table, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=said):
        make_question(changed, catalogue)
