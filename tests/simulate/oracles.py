"""What must hold in every simulated history: O1 to O6, each checked where it could first be seen.

O1  a state that is opened again is never older than what any worker was told is decided
O2  decided weights are those of a plain loop that replays the ledger
O3  every decided step holds each rank once: what it holds is explained by *one* start of each rank;
    a page is written once, and with it all pages of its extent, under the attempt that is decided,
    unless it has no gradient: then it is not
O4  when faults end, the job finishes within a bound (`history.py`)
O5  the payloads that a process holds stay within its limits (`world.Account`), and when all is done
    it holds none; a switch, a node's own too, holds copies of weights (`history.py`)
O6  weights that a worker computes with are those of the version it asked for, decided or, until
    then, as made under its attempt
O7  the suite fails where the program is wrong: of planted bugs it finds each (`tests/planted.py`)

Each start of a rank pushes other gradients (`job.gradient`), so O2, O3 and O6 are one question: is
there one start for each rank such that a plain loop has these bits? A *candidate* is such a choice
for one version, made under one attempt; what is seen of that version strikes candidates out, and
when none is left, something was added twice, left out, mixed, or changed on the way. The ledger of
a decided version strikes out all that name other ranks than it does.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from luwu.base.tree import NODE, Place, ranges_text, ranks_of
from luwu.nic.core import actions as nic
from tests.simulate.disk import Disk, members_of
from tests.simulate.job import POISONER, Job, initial, kept

if TYPE_CHECKING:
    from tests.simulate.worker import Worker


class Candidate:
    """One explanation of a version: the one before it, and which start of each rank pushed.

    A rank whose start is None is not in the step.
    """

    def __init__(
        self, job: Job, before: Candidate | None, step: int, starts: Sequence[int | None]
    ) -> None:  # fmt: skip
        self._job, self._before, self._step, self._starts = job, before, step, starts
        self._pages: dict[int, tuple[Any, Any]] = {}
        self.is_struck = False

    @property
    def is_possible(self) -> bool:
        """Neither it nor what it follows from was struck out."""
        return not self.is_struck and (self._before is None or self._before.is_possible)

    @property
    def contributors(self) -> int:
        """Bitmap of the ranks that are in the step."""
        return sum(1 << rank for rank, start in enumerate(self._starts) if start is not None)

    def page(self, chunk: int) -> tuple[Any, Any]:
        """(weights, momentum), computed when first asked for."""
        if chunk not in self._pages:
            self._pages[chunk] = self._made(chunk)
        return self._pages[chunk]

    def _made(self, chunk: int) -> tuple[Any, Any]:
        job, step = self._job, self._step
        if self._before is None:
            weights = initial(job.layout, chunk)
            return weights, np.zeros_like(weights)
        is_left_out = job.is_left_out(step) and self._starts[POISONER] is not None
        if is_left_out or not job.layout.chunks[chunk].trainable:
            return self._before.page(chunk)
        starts = {rank: start for rank, start in enumerate(self._starts) if start is not None}
        self._pages |= job.after_step(self._before.page, step, starts)
        return self._pages[chunk]

    def __repr__(self) -> str:
        return f"starts {tuple(self._starts)}"


class Oracles:
    """See the module; `disks` are those of the nodes, by number."""

    def __init__(self, job: Job, disks: Sequence[Disk], known_steps: Callable[[], int]) -> None:
        """`known_steps`: decided steps that anybody who lives was told of."""
        self._job, self._disks, self._known_steps = job, disks, known_steps
        self.may_be_left_out = job.node_limits.workers_min is not None
        """A step may be made without some ranks, if the ledger says so."""
        self._first = [Candidate(job, None, -1, ())]
        self._made: dict[tuple[int, int], list[Candidate]] = {}
        """(version, attempt) -> what may explain it."""
        self._pushed: dict[tuple[int, int], set[int]] = defaultdict(set)
        """(step, rank) -> starts that pushed gradients of it."""
        self._chosen_from: dict[tuple[int, int], tuple[tuple[int | None, ...], ...]] = {}
        self.told = -1
        """The last step that any worker was told is decided."""
        self._went_back = False
        """An older copy of the state was put in its place."""
        self._attempts_before: dict[int, int] = {}
        """Version -> attempt, of the states before that; the last, if it was made again."""
        self._replaced_before: set[bytes] = set()
        """What lay beside versions of the state before that, attached late."""
        self._announced: int | None = None
        """Decided steps of the state before that, if the copy has fewer."""

    # ---------------------------------------------------------------------- what workers do

    def pushed(self, worker: Worker, step: int) -> None:
        """It pushes gradients of a step."""
        self._pushed[step, worker.rank].add(worker.start)

    def step_decided(self, worker: Worker, told: nic.StepDecided) -> None:
        """It was told that a step is decided."""
        decided = self._first_disk.version
        self.told = max(self.told, told.step)
        if self._is_of_before(told.step + 1):
            return
        assert told.step < (decided or 0), (
            f"O1: {worker.name} was told that step {told.step} is decided, the state is at version "
            f"{decided}"
        )
        ledgers = (disk.ledger.get(told.step + 1) for disk in self._disks)
        made_by = next(ledger for ledger in ledgers if ledger is not None)
        is_left_out = self._job.is_left_out(told.step) and bool(made_by & 1 << POISONER)
        assert told.applied != is_left_out, (
            f"O2: {worker.name} was told that step {told.step} was applied: {told.applied}"
        )

    def noted(self, place: Place, noted: dict[str, Any]) -> None:
        """A switch notes that a step is decided, and the ranks in it that its parent knows."""
        version, tree = noted["step"] + 1, self._job.tree
        if self._is_of_before(version):
            return
        above = tree.root if place.parent == NODE else tree.named(place.parent)
        ledgers = (disk.ledger.get(version) for disk in self._disks)
        made_by = next(ledger for ledger in ledgers if ledger is not None) & tree.ranks(above)
        found = noted["ranks"]
        assert found == ranges_text(ranks_of(made_by)), (
            f"O3: {place.process} notes that step {version - 1} has ranks {found}, not {made_by:#b}"
        )

    def used(self, worker: Worker, step: int, weights: dict[int, Any]) -> None:
        """It computes with these weights, which it was told it may."""
        attempt = worker.core.out.attempt
        if self._is_of_before(step - 1):
            return
        known = (disk.decided_attempt.get(step) for disk in members_of(self._disks))
        decided = next((each for each in known if each is not None), attempt)
        made = decided if decided <= attempt else attempt
        self._check("O6", f"{worker.name} in step {step}", step, made, weights)

    def replaced(self, worker: Worker, step: int, data: bytes) -> None:
        """It was told that this has replaced something beside the version that a step made: all
        that keep what is attached have it, unless a later version is decided there."""
        for disk in members_of(self._disks):
            found = disk.replaced.get((step + 1, worker.rank))
            is_kept_here = 0 in disk.share.stripes and disk.version == step + 1
            # The copy may be of this very version; the answer was under way as it was put there.
            is_of_before = self._is_of_before(step + 1) or data in self._replaced_before
            assert found == data or not is_kept_here or is_of_before, (
                f"O3: beside version {step + 1} at node {disk.number} lies {found!r} of "
                f"{worker.name}, which was told that it is {data!r}"
            )

    # ---------------------------------------------------------------------- what disks hold

    def decided(self, number: int, version: int) -> None:
        """A disk has decided a version."""
        disk = self._disks[number]
        attempt = disk.decided_attempt[version]
        is_first = not any(
            version in other.decided_attempt for other in self._disks if other is not disk
        )
        if is_first and self._announced is not None:
            known = self._known_steps()
            is_same = self._attempts_before.get(version) == attempt  # it was prepared by then
            assert version > known or is_same, (
                f"O1: step {version - 1} is made again; {known} are known"
            )
        if version > 0:
            self._check_ledger(disk.ledger[version], version, attempt)
            self._check_whole(disk, version, attempt)
            self._check_kept(disk, version)
        attempts = {each.decided_attempt.get(version, attempt) for each in self._disks}
        assert attempts == {attempt}, f"I2: version {version} was decided under two attempts"
        if is_first:
            for other in self._disks:  # E2: what all have prepared that count, or are to
                is_gone = self._went_back and other.prepared is None  # an older copy is there
                if is_gone or (version, attempt) not in other.was_prepared:
                    continue
                weights = other.made_weights()
                self._check("O2", f"node {other.number}, prepared", version, attempt, weights)
        self._check("O2", f"node {number}, decided", version, attempt, disk.decided_weights())

    def _check_ledger(self, ledger: int, version: int, attempt: int) -> None:
        """It names ranks, and they are those of the sums."""
        everyone = (1 << self._job.world_size) - 1
        assert ledger, f"O3: version {version} is made by nobody"
        assert not ledger & ~everyone, f"O3: version {version} is made by {ledger:#b}"
        assert self.may_be_left_out or ledger == everyone, f"O3: version {version}: {ledger:#b}"
        for candidate in self._candidates(version, attempt):
            if candidate.contributors != ledger:
                candidate.is_struck = True

    def _check_whole(self, disk: Disk, version: int, attempt: int) -> None:
        """Of each extent all pages that have a gradient are of this version, or none is, and no
        others; the attempt counts too."""
        layout, ranks = self._job.layout, ranks_of(disk.ledger[version])
        for extent in layout.extents if disk.applied else ():
            if not disk.share.owns_extent(extent.index):
                continue
            changed = {
                chunk
                for chunk in extent.chunks
                if not self._job.is_untouched(ranks, version - 1, chunk)
            }
            found = {chunk: disk.written.get(chunk) for chunk in extent.chunks}
            made = {chunk for chunk in extent.chunks if found[chunk] == (version, attempt)}
            assert made in (changed, set()), (
                f"O3: of extent {extent.index} other pages were written as version {version} under "
                f"attempt {attempt} than {sorted(changed)}: {found}"
            )

    def _check_kept(self, disk: Disk, version: int) -> None:
        """Beside every version lies what each rank keeps: where the cursors of its data are."""
        expected = {
            (rank, piece): data
            for rank in ranks_of(disk.ledger[version])
            for piece, data in enumerate(kept(rank, version - 1))
        }
        if self._job.keeps and 0 in disk.share.stripes:
            found = disk.kept[version]
            assert found == expected, (
                f"O3: beside version {version} lies {sorted(found)}, expected {sorted(expected)}"
            )

    def opened(self, number: int) -> None:
        """A node has opened its disk again."""
        if self._announced is not None:
            return  # whether it goes on is looked at when it decides something
        disk = self._disks[number]
        if disk.is_lost or disk not in members_of(self._disks):
            return  # it counts no more
        found = -1 if disk.version is None else disk.version
        if self._went_back and disk.prepared is not None:
            found = disk.prepared.version  # it was copied while another had decided it already
        promised = self.told + 1  # what is announced is decided at all
        assert self.told < 0 or found >= promised, (
            f"O1: node {number} opened version {found}; step {self.told} was told to be decided"
        )

    def going_back(self, version: int | None) -> None:
        """An older copy is put in the place of the state: with it go the steps after its own."""
        self._went_back = True
        for disk in self._disks:  # of one that went back just now, others or earlier copies know
            self._attempts_before |= disk.decided_attempt
        self._replaced_before = {data for disk in self._disks for data in disk.replaced.values()}
        now = self._disks[0].version or 0
        if (version or 0) < now:
            self._announced = max(now, self._announced or 0)
        for known in (self._made, self._chosen_from):
            for key in [key for key in known if key[0] > (version or 0)]:
                del known[key]

    def _is_of_before(self, version: int) -> bool:
        """Whether a worker speaks of a version that went with the state, and was not told yet."""
        return self._announced is not None and version > (self._first_disk.version or 0)

    def at_a_refusal(self) -> None:
        """Somebody refused to go on: rightly so?"""
        assert self._went_back, "O1: refused, though the state never went back"

    def at_the_end(self) -> str:
        """The job is done: the ledger is complete, and the digest that of the plain loop."""
        job, weights = self._job, {}
        members = members_of(self._disks)
        for disk in members:
            where = f"node {disk.number}"
            assert disk.version == job.steps, f"O2: {where} is at version {disk.version}"
            assert not disk.is_partial, f"E8: {where} counts, and lacks pages"
            assert set(disk.ledger) == disk.versions_to(job.steps), f"O3: {where}: {disk.ledger}"
            for version, attempt in disk.decided_attempt.items():
                known = members[0].decided_attempt.get(version, attempt)
                assert attempt == known, f"I2: {where}"
            found = disk.decided_weights()
            assert sorted(found) == sorted(disk.share.chunks()), f"O2: pages are missing at {where}"
            weights |= found
        last = self._candidates(job.steps, members[0].decided_attempt[job.steps])
        digests = {_digest(weights[c.index] for c in job.layout.chunks)}
        expected = {_digest(c.page(i.index)[0] for i in job.layout.chunks) for c in last}
        assert digests <= expected, f"O2: {digests} is none of {expected}"
        return digests.pop()

    # ---------------------------------------------------------------------- candidates

    def _check(
        self, oracle: str, where: str, version: int, attempt: int, weights: dict[int, Any]
    ) -> None:
        candidates = self._candidates(version, attempt)
        for chunk, found in weights.items():
            for candidate in candidates:
                if not np.array_equal(candidate.page(chunk)[0], found):
                    candidate.is_struck = True
            left = [each for each in candidates if each.is_possible]
            assert left, (
                f"{oracle}: {where}: chunk {chunk} of version {version} (attempt {attempt}) is "
                f"explained by none of {candidates}"
            )
            candidates = left

    @property
    def _first_disk(self) -> Disk:
        """One that counts, and holds the state."""
        return max(members_of(self._disks), key=lambda d: -1 if d.version is None else d.version)

    def _decided_attempt(self, version: int) -> int:
        """The attempt under which a version was decided, wherever it is by now."""
        found = (disk.decided_attempt.get(version) for disk in self._disks)
        return next(attempt for attempt in found if attempt is not None)

    def _candidates(self, version: int, attempt: int) -> list[Candidate]:
        """What may explain a version that was made under an attempt."""
        if version == 0:
            return self._first
        key, step = (version, attempt), version - 1
        ranks = range(self._job.world_size)
        nobody: tuple[None, ...] = (None,) if self.may_be_left_out else ()
        starts = tuple((*sorted(self._pushed[step, rank]), *nobody) for rank in ranks)
        if key not in self._made:
            self._made[key] = []
        if self._chosen_from.get(key) != starts:  # somebody else has pushed since
            known = {tuple(each._starts) for each in self._made[key]}
            self._chosen_from[key] = starts
            before = self._first
            if step:
                before = self._candidates(step, self._decided_attempt(step))
            self._made[key] += [
                Candidate(self._job, each, step, chosen)
                for each in before
                for chosen in itertools.product(*starts)
                if chosen not in known
            ]
        return [each for each in self._made[key] if each.is_possible]


def _digest(arrays: Iterable[Any]) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(array.tobytes())
    return whole.hexdigest()
