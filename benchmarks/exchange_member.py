"""One process of an exchange: does what its parent says, a line at a time (see `crew.py`).

It plays one part (`exchange_part.py`), which it makes when it is opened.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable
from typing import IO

import xxhash

from benchmarks.exchange_model import Job, check_weights, octets
from benchmarks.exchange_part import Document, Part
from luwu.base.clock import SYSTEM_CLOCK, sleep


def make_part(kind: str, job: Job, rank: int, more: Document) -> Part:
    """The part of a kind; imports what it needs alone."""
    if kind == "luwu":
        from benchmarks.exchange_luwu import LuwuWorker

        return LuwuWorker(job, rank, connect=more["connect"])
    if kind in ("fsdp", "ddp", "exchange-only"):
        from benchmarks.gloo import DdpRank, ExchangeOnlyRank, FsdpRank

        ranks = {"fsdp": FsdpRank, "ddp": DdpRank, "exchange-only": ExchangeOnlyRank}
        return ranks[kind](job, rank, store=more["store"])
    if kind in ("hub", "spoke"):
        from benchmarks.hub import Hub, Spoke

        if kind == "hub":
            return Hub(job, rank, endpoint=more["endpoint"], frame_bytes=more["frame_bytes"])
        return Spoke(job, rank, endpoint=more["endpoint"], frame_bytes=more["frame_bytes"])
    assert kind == "update", kind
    from benchmarks.page_update import PageUpdate

    return PageUpdate(job, rank)


class Session:
    """The commands of a parent, one after the other."""

    def __init__(self) -> None:
        self._part: Part | None = None
        self._steps = 0

    def do(self, command: Document) -> Document:
        """Do a command; its answer."""
        if command["do"] == "open":
            job = Job(**command["job"])
            self._part = make_part(command["kind"], job, command["rank"], command)
            return self._part.hello()
        assert self._part is not None
        answer: Document = getattr(self, f"_{command['do']}")(self._part, command)
        return answer

    def _step(self, part: Part, command: Document) -> Document:
        _sleep_until(command["at_ns"])
        start_ns = SYSTEM_CLOCK.now_ns()
        part.step()
        end_ns = SYSTEM_CLOCK.now_ns()
        part.finish_step()
        self._steps += 1
        return {"start_ns": start_ns, "end_ns": end_ns}

    def _read(self, part: Part, command: Document) -> Document:
        """One reading of all weights."""
        _sleep_until(command["at_ns"])
        start_ns = SYSTEM_CLOCK.now_ns()
        if part.has_weights:
            for unit in range(len(part.job.unit_elems)):
                part.weights(unit).sum().item()
        return {"start_ns": start_ns, "end_ns": SYSTEM_CLOCK.now_ns()}

    def _check(self, part: Part, command: Document) -> Document:
        """A fingerprint of all weights; rank 0 compares them with the reference."""
        if not part.has_weights:
            return {}
        digest = xxhash.xxh3_128()
        for unit in range(len(part.job.unit_elems)):
            digest.update(octets(part.weights(unit)))
        found = None
        if part.rank == 0:
            steps = self._steps if part.has_updates else 0
            found = check_weights(part.job, steps, part.weights, bound=not part.is_exact)
        return {"digest": digest.hexdigest(), "equal": found}

    def _leave(self, part: Part, command: Document) -> Document:
        part.leave()
        return {}


def _sleep_until(at_ns: int) -> None:
    left_ns = at_ns - SYSTEM_CLOCK.now_ns()
    if left_ns > 0:
        sleep(left_ns / 1e9)


def _read_lines(put: Callable[[bytes], None]) -> None:
    """Read commands in a thread of its own: at the end of the input nobody waits for us."""
    rest = b""
    while piece := os.read(0, 65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            put(line)
    os._exit(0)


def main() -> None:
    """Serve the parent until it closes our input."""
    answers: IO[bytes] = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(commands.put,), daemon=True).start()
    session = Session()
    while True:
        answer = session.do(json.loads(commands.get()))
        answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
