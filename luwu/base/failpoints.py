"""Named places where a process may be made to fail; off unless the environment names them.

    LUWU_FAILPOINTS="store.before_manifest=kill@3;node.after_write=raise;worker.before_push=delay:5ms"

makes the third pass of the first place kill the process, every pass of the second raise, and every
pass of the last wait. The names are in the code as `failpoint("store.before_manifest")`; while
the variable is unset that costs one dictionary look-up.

Actions: `kill` (SIGKILL to this process), `raise` (FailpointError), `delay:TIME`; each with an
optional `@N`: the N-th pass of this process only, counted from 1. The launcher takes the variable
from the switch and node that it starts again, which would fail for ever otherwise.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import Final

from luwu.base.clock import sleep
from luwu.base.errors import ConfigError, LuwuError, suggestion
from luwu.base.quantities import parse_ns

PLACES: Final = {
    "making.before_rename": "an export or import is complete, but not yet renamed",
    "node.after_decide": "a step is decided, but not yet announced",
    "node.after_prepare": "a step is prepared, but not yet announced",
    "node.after_write": "a page of the current step is written",
    "refill.between_places": "luwu refill has moved a node's directory, not yet the new one",
    "store.after_abort": "a prepared step was withdrawn",
    "store.after_counters": "the store's generation or attempt is recorded",
    "store.after_data_flush": "the pages of a step are flushed, its manifest is not yet written",
    "store.after_decided": "a step is decided",
    "store.after_manifest": "both copies of the manifest are written, but no record names them yet",
    "store.after_meta_flush": "a record of the store is flushed",
    "store.after_page_write": "a page is written",
    "store.after_prepared": "a step is prepared",
    "store.before_abort": "a prepared step is about to be withdrawn",
    "store.before_counters": "the store's generation or attempt is about to be recorded",
    "store.before_data_flush": "all pages of a step are written, none is flushed yet",
    "store.before_decide": "a step is prepared and about to be decided",
    "store.before_filling": "a store is about to be emptied, to be filled by other nodes",
    "store.before_manifest": "the manifest of a step is about to be written",
    "store.before_meta_flush": "a record of the store is written, but not yet flushed",
    "store.before_page_write": "a page is about to be written",
    "store.between_manifests": "the first copy of a manifest is written, the second is not",
    "store.create.after_allocate": "the files of a new store have their full sizes",
    "store.create.after_config": "the configuration of a new store is written",
    "store.create.after_rename": "a new store is renamed to its final path",
    "store.create.before_files": "the directory of a new store exists and is empty",
    "store.create.before_rename": "a new store is complete, but not yet renamed",
    "store.open.after_flush": "a store is open, but not yet used",
    "store.open.after_lock": "a store that is being opened is locked, but not yet read",
    "store.open.before_flush": "a store that is being opened has recorded its new generation",
    "switch.before_sum": "a switch has all gradients of an extent, but has not added them",
    "worker.before_commit": "a worker has pushed all gradients of a step, but not committed them",
    "worker.before_push": "a worker has computed the gradients of a unit, but not sent them",
    "zap.request": "a client connects, and its key is about to be checked",
}
"""Every place in the code, and what is the case there; docs/faults.md lists them."""


_ITEM: Final = re.compile(r"([^=]+)=(?:(kill|raise)|delay:([^@]+))(?:@(0*[1-9][0-9]*))?")


class FailpointError(LuwuError):
    """Raised by a failpoint that a test switched on."""

    code = "E104"


@dataclass(slots=True)
class _Armed:
    action: str
    pass_number: int | None
    delay_ns: int = 0
    passes_count: int = 0


def parse_failpoints(text: str) -> dict[str, _Armed]:
    """`{place: what to do}` of the variable's text. Raises ConfigError."""
    armed: dict[str, _Armed] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise ConfigError(
                f"LUWU_FAILPOINTS: {item!r} is not PLACE=kill|raise|delay:TIME[@N], N from 1; "
                "fix it or unset it"
            )
        place, action, delay, number = match.groups()
        if place not in PLACES:
            raise ConfigError(
                f"LUWU_FAILPOINTS: there is no place {place!r}{suggestion(place, PLACES)}; "
                "docs/faults.md lists them",
                code="E201",
            )
        if place in armed:
            raise ConfigError(f"LUWU_FAILPOINTS: {place!r} is named twice; name it once")
        delay_ns = parse_ns(delay, name=f"LUWU_FAILPOINTS: {place}") if delay else 0
        armed[place] = _Armed(action or "delay", int(number) if number else None, delay_ns)
    return armed


_armed = parse_failpoints(os.environ.get("LUWU_FAILPOINTS", ""))


def failpoint(place: str) -> None:
    """Fail here if it is armed."""
    armed = _armed.get(place)
    if armed is None:
        return
    armed.passes_count += 1
    if armed.pass_number not in (None, armed.passes_count):
        return
    if armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "delay":
        sleep(armed.delay_ns / 1e9)
        return
    raise FailpointError(f"failpoint {place}, pass {armed.passes_count}")
