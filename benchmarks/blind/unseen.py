"""How far off predictions of what the model had not seen were, and the interval that follows.

The rows are those of docs/predict/blind.json and blind-2.json whose results were published, and of
mixtures of experts what was asked of the same model beside them. Each is of a family (its group),
of a kind, and wider if something of it was new: the device in its precision, the framework,
experts, or requests that queue where the closed form was asked. Of each kind and each of these the
factor is the 85 % quantile of |ln(predicted / published)|; a row's interval has the largest of its
own. So 80 % of the rows of a family lie in the intervals that the other families make (`coverage`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.blind.score import FROZEN, PUBLISHED

SHARE: Final = 0.8
SECOND: Final = PUBLISHED.with_name("published-2.json")
_QUANTILE: Final = 0.85
_WIDER: Final = {
    "blind.json": {
        "GB200": ("device",), "H100 RoCE 400G": ("framework",), "LuWu testbed": ("framework",),
    },
    "blind-2.json": {
        "torchtitan, H100": ("framework",), "DeepSpeed and Megatron, A100": ("framework",),
        "TensorRT-LLM, B200": ("device",), "70B on two H100": ("framework",),
        "405B on eight devices, 128/8": ("framework",),
    },
}  # fmt: skip
"""By family: what all of its rows have that no other row has."""
_BRIDGE: Final = "Megatron-Bridge 25.11"
"""A family whose devices were new but for H100: GB200 had been seen in 16 bits alone."""
_SERVING: Final = ("Inference", "TensorRT-LLM", "70B on two H100", "405B on eight devices")
_EXPERTS: Final = (
    ("training", 14560 / 5275), ("training", 31806 / 23766), ("training", 31806 / 28934),
    ("training", 30535 / 9299), ("serving", 23429 / 39827), ("serving", 18752 / 37844),
    ("serving", 6077 / 6251),
)  # fmt: skip
"""Predicted over published tokens a second of Qwen3-30B-A3B: on H100, GB200, GB300, B200 (Megatron-
Bridge), and of three lengths on B200 (TensorRT-LLM)."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A row that the model had not seen when it predicted it."""

    family: str
    kind: str
    """training or serving."""
    wider: tuple[str, ...]
    error: float
    """|ln(predicted / published)|."""


def unseen() -> list[Unseen]:
    """All of them that are times or rates."""
    first = _read(PUBLISHED)["rows"]
    published = {row["name"]: row["published"] for row in first
                 if not row.get("left_out") and row.get("bound") is None}  # fmt: skip
    found = [*_of("blind.json", published), *_of("blind-2.json", _read(SECOND))]
    return [
        *found, *(Unseen("experts", kind, ("experts",), abs(math.log(each)))
                  for kind, each in _EXPERTS),
    ]  # fmt: skip


def _of(document: str, published: Mapping[str, float]) -> Iterable[Unseen]:
    for row in _read(FROZEN.with_name(document))["rows"]:
        group, name = row["group"], row["name"]
        if name in published and row["unit"] not in ("GiB", "MiB"):
            serving = any(group.startswith(each) for each in _SERVING)
            wider = _WIDER[document].get(group, ())
            if group == _BRIDGE and "H100" not in name:
                wider = ("device",)
            if "first token" in name and "concurrency" in name and "concurrency 1," not in name:
                wider = (*wider, "queueing")
            error = abs(math.log(row["value"] / published[name]))
            yield Unseen(document + group, "serving" if serving else "training", wider, error)


def factors(rows: Iterable[Unseen]) -> dict[str, float]:
    """The factor of each kind, where nothing is new, of each thing that may be new, and as `""`
    of all rows where something is."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        for name in row.wider or (row.kind,):
            errors.setdefault(name, []).append(row.error)
        if row.wider:
            errors.setdefault("", []).append(row.error)
    return {
        name: math.exp(sorted(each)[math.ceil(_QUANTILE * len(each)) - 1])
        for name, each in errors.items()
    }


def coverage(rows: list[Unseen]) -> dict[str, tuple[int, int]]:
    """Rows of each family of the blind sets inside of the intervals of the others, and all."""
    found = {}
    for family in sorted({row.family for row in rows} - {"experts"}):
        known = factors(row for row in rows if row.family != family)
        own = [row for row in rows if row.family == family]
        inside = 0
        for row in own:
            factor = max(known[row.kind], *(known.get(name, known[""]) for name in row.wider), 1.0)
            inside += row.error <= math.log(factor)
        found[family] = inside, len(own)
    return found


def _read(path: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
