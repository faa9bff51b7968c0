"""Digests of trained weights, by way of running: `digests.txt` holds them, tests compare.

    a way       what is changed of `jobs.Way`, in words; the first is the plain one
    cheap       of these, the ones that run wherever the tests run; the others are marked slow

A way that differs from the plain one only in how bytes travel, or where they are kept, has its
digest (I3). Updates round as torch's vector code on this processor does: the file is that of
processors with AVX2; elsewhere the ways are compared with each other only.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from luwu.layout import StoredForm
from tests.evidence.jobs import OPTIMIZERS, Way, digest_of
from tests.simulate.trees import TREES

TABLE: Final = Path(__file__).parent / "digests.txt"
PLAIN: Final = "plain"

_SAME: Final[dict[str, dict[str, Any]]] = {
    PLAIN: {},
    "no switch": {"has_switch": False},
    "tcp": {"transport": "tcp"},
    "tcp, no switch": {"transport": "tcp", "has_switch": False},
    "shm": {"transport": "shm"},
    "shm, no switch": {"transport": "shm", "has_switch": False},
    "two nodes": {"optimizer_nodes": 2},
    "three nodes, at_step": {"optimizer_nodes": 3, "update": "at_step"},
    "two nodes, shm": {"optimizer_nodes": 2, "transport": "shm"},
    "at_step": {"update": "at_step"},
    "at_step, no switch": {"update": "at_step", "has_switch": False},
    "tight": {"is_tight": True},
    "tight, at_step": {"is_tight": True, "update": "at_step"},
    "tight, at_step, no switch": {"is_tight": True, "update": "at_step", "has_switch": False},
    "in RAM only": {"is_stored": False},
    "chunks of 32 KiB": {"chunk_kib": 32},
    "chunks of 1 MiB": {"chunk_kib": 1024},
    "no slots": {"has_slots": False},
    "no slots, at_step": {"has_slots": False, "update": "at_step"},
    "stopped and resumed": {"stop_at": 2},
    "stopped and resumed, no switch": {"stop_at": 2, "has_switch": False},
    "stopped and resumed, two nodes": {"stop_at": 1, "optimizer_nodes": 2},
    "an attempt is cancelled": {"cancel_step": 1},
    "an attempt is cancelled, at_step": {"cancel_step": 2, "update": "at_step"},
    "an attempt is cancelled, no switch": {"cancel_step": 1, "has_switch": False},
    "an attempt is cancelled, two nodes": {"cancel_step": 1, "optimizer_nodes": 2},
}
"""Ways that have the digest of the plain one."""


def _others() -> Iterator[tuple[str, dict[str, Any]]]:
    orders = ("streaming", "at_step")
    for optimizer, update in itertools.product(OPTIMIZERS, orders):
        if optimizer != "adamw":
            yield f"{optimizer}, {update}", {"optimizer": optimizer, "update": update}
    for dtype, has_switch in itertools.product(("bfloat16", "float16"), (True, False)):
        where = "switch" if has_switch else "no switch"
        yield f"{dtype}, {where}", {"wire_dtype": dtype, "has_switch": has_switch}
    for has_switch in (True, False):
        where = "switch" if has_switch else "no switch"
        given = {"aggregate": "shared-exponent", "has_switch": has_switch}
        yield f"shared-exponent, {where}", given
    yield "shared-exponent, two nodes", {"aggregate": "shared-exponent", "optimizer_nodes": 2}
    for world_size, has_switch in itertools.product((1, 3, 5), (True, False)):
        where = "switch" if has_switch else "no switch"
        yield f"{world_size} workers, {where}", {"world_size": world_size, "has_switch": has_switch}
    for tree, update in itertools.product(TREES, orders):
        yield f"tree of {tree}, {update}", {"tree": tree, "update": update}
    yield "tree of two levels, two nodes", {"tree": "two levels", "optimizer_nodes": 2}
    yield "tree of two levels, no slots", {"tree": "two levels", "has_slots": False}
    yield "clipped", {"update": "at_step", "max_grad_norm": 0.5}
    yield "clipped, no switch", {"update": "at_step", "max_grad_norm": 0.5, "has_switch": False}
    yield "clipped, two nodes", {"update": "at_step", "max_grad_norm": 0.5, "optimizer_nodes": 2}
    form = StoredForm(state="int8", master="bfloat16")
    yield "fewer bits, an average", {"form": form, "has_average": True}
    for update, has_switch in itertools.product(orders, (True, False)):
        where = "switch" if has_switch else "no switch"
        given = {"poison_step": 1, "update": update, "has_switch": has_switch}
        yield f"a step is skipped, {update}, {where}", given


WAYS: Final[Mapping[str, Way]] = {
    name: Way(**given) for name, given in (*_SAME.items(), *_others())
}
CHEAP: Final = (
    PLAIN, "no switch", "tcp", "shm", "two nodes", "three nodes, at_step", "tight",
    "no slots", "stopped and resumed", "an attempt is cancelled", "sgd with momentum, at_step",
    "lion, streaming", "bfloat16, switch", "shared-exponent, switch",
    "shared-exponent, no switch", "tree of two levels, streaming", "clipped",
)  # fmt: skip


def table() -> dict[str, str]:
    """Way -> digest, as the file has it."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def is_comparable() -> bool:
    """Whether this processor's vector code rounds as that of the file did."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def expected(name: str) -> str | None:
    """The digest that a way must come to: the file's; where this processor rounds otherwise, that
    of the plain way, or None if that may differ."""
    if is_comparable():
        return table()[name]
    return digest(PLAIN) if name in _SAME else None


def digest(name: str) -> str:
    """Run a job in a way."""
    with tempfile.TemporaryDirectory(prefix="luwu-evidence-") as directory:
        return digest_of(WAYS[name], Path(directory))


def write_table() -> None:
    """Write the file, from what ways come to today."""
    lines = ["# Digests of weights by way of running: tests/evidence/digests.py."]
    lines += [f"{digest(name)}  {name}" for name in WAYS]
    TABLE.write_text("\n".join([*lines, ""]))
