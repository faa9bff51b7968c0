"""Questions that many tests of the performance model ask."""

from __future__ import annotations

from typing import Any

from luwu.predict.ask.question import Question, make_question
from luwu.predict.hardware.catalogue import Catalogue

THREE_D: dict[str, Any] = {
    "system": "3d", "model": "GPT-175B", "device": "H100-80", "network": "ib-ndr",
    "software": "nemo-2024", "devices": 512, "sequence": 2048, "batch": 1024, "tensor": 4,
    "pipeline": 8, "virtual": 12, "sequence_parallel": True,
}  # fmt: skip
NODE: dict[str, Any] = {
    "processor": "Xeon-5320", "memory_bytes": "512 GiB", "disk": "P5510-3.84T", "disks": 12,
}  # fmt: skip
LUWU: dict[str, Any] = {
    "system": "luwu", "model": "GPT-13B", "device": "A100-40", "network": "roce-100g",
    "software": "megatron-2023", "devices": 16, "sequence": 2048, "batch": 64, "micro_batch": 4,
    "recompute": "full",
    "node": NODE,
}  # fmt: skip
ZERO3: dict[str, Any] = {key: value for key, value in LUWU.items() if key != "node"} | {
    "system": "zero3"
}
DEVICES: dict[str, Any] = {
    "system": "inference", "model": "Llama3-70B", "device": "H100-80", "network": "ib-ndr",
    "tensor": 8, "pipeline": 2, "precision": "fp8", "batch": 16,
    "input_tokens": 1024, "output_tokens": 512,
}  # fmt: skip
SOCKETS: dict[str, Any] = {
    "system": "inference-sockets", "model": "Qwen-72B", "processor": "Xeon-8575C",
    "network": "roce-100g", "sockets": 4, "input_tokens": 128, "output_tokens": 64,
}  # fmt: skip
RENTED = {"device_rental": "2.06 USD/h"}
TREE = {"kind": "aggregation-tree", "fan_in": 4}
RAILS = {"kind": "rail-optimised", "radix": 64}


def asked(table: dict[str, Any], catalogue: Catalogue, **more: Any) -> Question:
    """A question of training; None leaves a key out."""
    table = {key: value for key, value in {**table, **more}.items() if value is not None}
    question = make_question(table, catalogue)
    assert isinstance(question, Question)
    return question
