"""Simulated histories to record: which seeds, and how they were chosen.

A history is `tests.simulate.plan.make_history` of a seed, or of a seed and a number of slots. The
list in `records/seeds.txt` was chosen by `choose`: as long as a seed brings something that none
before it has (a message, an action, an event, a fault that struck, a value of an option, a pair of
lines of the cores), the one that brings most for its length is next.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgpack

from luwu.base.limits import PROTOCOL_VERSION
from tests.evidence.coverage import Tracer, features_of
from tests.evidence.record import RECORDS, Head, Recorded
from tests.evidence.recorder import Recorder
from tests.evidence.replayer import Replayed, replay, shown, without_texts
from tests.simulate.history import run_history
from tests.simulate.plan import make_history

SEEDS = RECORDS / "seeds.txt"
QUICK_COUNT = 20
"""Of the list, the first so many are replayed wherever the tests run."""
_SLOTS = {7: 1, 8: 2, 9: 5}
"""Last digit of a candidate's seed -> slots of the switch, beside those that options choose."""


def slots_of(seed: int) -> int | None:
    """In how many slots the history of a seed runs; None: as its options say."""
    return _SLOTS.get(seed % 10)


def name_of(seed: int) -> str:
    """Of a history in records."""
    slots = slots_of(seed)
    return f"seed {seed}" if slots is None else f"seed {seed}, {slots} slots"


def run(recorder: Recorder, seed: int) -> tuple[Recorded, dict[str, int]]:
    """Record the history of a seed; beside it, the faults that struck. `recorder` listens."""
    recorded = recorder.begin(name_of(seed))
    simulation = run_history(make_history(seed, slots_of(seed)))
    return recorded, simulation.counts


def record(seeds: Sequence[int]) -> tuple[Head, list[Recorded]]:
    """Record the histories of some seeds."""
    recorder = Recorder(Head(PROTOCOL_VERSION))
    with recorder.recording():
        return recorder.head, [run(recorder, seed)[0] for seed in seeds]


def listed() -> list[int]:
    """The seeds of the repository's records."""
    lines = SEEDS.read_text().splitlines()
    return [int(line) for line in lines if line and not line.startswith("#")]


# ---------------------------------------------------------------------- choosing


@dataclass(frozen=True)
class Candidate:
    """A history that could be recorded, and what it covers."""

    seed: int
    size: int
    features: frozenset[Any]


def candidate(seed: int) -> Candidate:
    """What the history of a seed covers, by recording and replaying it."""
    recorder = Recorder(Head(PROTOCOL_VERSION))
    with recorder.recording():
        recorded, counts = run(recorder, seed)
    tracer, replayed = Tracer(), Replayed()
    tracer.run(lambda: replay(recorder.head, [recorded], replayed))
    assert not replayed.differences, str(replayed.differences[0])
    history = make_history(seed, slots_of(seed))
    found: set[Any] = set(features_of(recorded.lives)) | {("line", *arc) for arc in tracer.arcs}
    found |= {("fault", name) for name in counts}
    found |= {("option", *pair) for pair in vars(history.options).items()}
    for fault in history.faults:
        kind = getattr(fault, "kind", "")
        found.add(("planned", type(fault).__name__, kind, getattr(fault, "who", "")[:6]))
    return Candidate(seed, len(recorded.packed()), frozenset(found))


def choose(first: int, count: int, wanted: int) -> Iterator[tuple[int, int]]:
    """(seed, how much it brings that those before it do not), from `count` candidates."""
    with ProcessPoolExecutor(2) as pool:
        left = list(
            pool.map(functools.partial(candidate), range(first, first + count), chunksize=8)
        )
    covered: set[Any] = set()
    for _ in range(min(wanted, len(left))):
        best = max(left, key=lambda c: len(c.features - covered) / c.size**0.5)
        yield best.seed, len(best.features - covered)
        covered |= best.features
        left.remove(best)


# ---------------------------------------------------------------------- simulating again


def recorder_like(head: Head) -> Recorder:
    """A recorder that names everything as these records do."""
    return Recorder(Head(head.protocol, events=head.events, types=head.types))


def differences(head: Head, expected: Sequence[Recorded]) -> list[str]:
    """What differs where histories are simulated again; for each, the first event that does."""
    found = []
    recorder = recorder_like(head)
    seeds = {name_of(seed): seed for seed in listed()}
    with recorder.recording():
        for before in expected:
            now, _ = run(recorder, seeds[before.name])
            if before.packed() != now.packed():
                found.append(_first_difference(before, now))
    return found


def _first_difference(before: Recorded, now: Recorded) -> str:
    if len(before.lives) != len(now.lives):
        return f"{before.name}: {len(before.lives)} cores, now {len(now.lives)}"
    for number, (life, new) in enumerate(zip(before.lives, now.lives, strict=True)):
        where = f"{before.name}, process {number} ({life.kind})"
        for index, (event, is_now) in enumerate(zip(life.events, new.events, strict=False)):
            if msgpack.packb(event) != msgpack.packb(is_now):
                return f"{where}, event {index}\n  before {shown(event)}\n  now    {shown(is_now)}"
        if len(life.events) != len(new.events):
            return f"{where}: {len(life.events)} events, now {len(new.events)}"
    return f"{before.name}: a core was made with other values"


def outline(seed: int, head: Head) -> str:
    """A digest of all that the cores of a history are given and answer, without texts.

    A history that violates an oracle has one too, of what came before.
    """
    recorder = recorder_like(head)
    recorded = recorder.begin(name_of(seed))
    with recorder.recording(), contextlib.suppress(AssertionError):
        run_history(make_history(seed, slots_of(seed)))
    for life in recorded.lives:
        life.events = without_texts(recorder.head, life.events)
    return hashlib.blake2b(recorded.packed(), digest_size=6).hexdigest()


def faults_text() -> str:
    """For people: the faults that are planned for the listed histories, and their options."""
    planned = [make_history(seed, slots_of(seed)) for seed in listed()]
    faults = Counter(
        f"{type(fault).__name__} {getattr(fault, 'kind', '')}".strip()
        for history in planned for fault in history.faults
    )  # fmt: skip
    options = Counter(
        f"{name}={value}" for history in planned for name, value in vars(history.options).items()
    )
    lines = [f"{len(planned)} histories"]
    for title, found in (("faults", faults), ("options", options)):
        lines.append(f"{title}: " + ", ".join(f"{key} {n}" for key, n in sorted(found.items())))
    return "\n".join(lines)
