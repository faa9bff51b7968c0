"""The optimizer node as a state machine: when a page is read, updated, written, published, decided.

Its child is a switch (or the node's own, with `--no-switch`) that speaks for all ranks. Pure: an
event and a time in, actions out; the pipeline does what the actions say and reports back.

One step t, and what starts each change:

    sums come in       `Push` of every chunk, by parts, from all ranks
    streaming          a complete sum is updated at once: Update -> updated -> written
    at_step            a complete part is folded: Fold -> folded; pages wait for the verdict
    verdict(t)         `Commit` is in and every sum is complete, measured and finite
    at_step            now Update -> updated -> written, in the order of the forward
    decided(t)         every page is written: Prepare -> prepared, Decide -> decided

Weights for step t+1 are published as soon as a page is updated, tentative until verdict(t). Pages
of t+1 are updated only after decided(t): until then the other side of every page is step t-1's.

An abort raises `attempt`, which is durable and never resets; whatever was computed under an older
one is stale. Between verdict(t) and decided(t) an abort waits: step t is as good as decided. A step
whose sums are not finite is skipped: nothing of it stays, and a new attempt voids what streamed.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from luwu.base.limits import INT64_MAX
from luwu.layout import DTYPE_BYTES, Layout
from luwu.wire.actions import Drop, Note, Payload, Send
from luwu.wire.description import Description, differences, parse_description
from luwu.wire.messages import (
    Abort,
    Begin,
    Cancel,
    Commit,
    DataMessage,
    Decided,
    Hello,
    Leave,
    Load,
    Message,
    Pull,
    Push,
    Received,
    Refuse,
    Rejoin,
    Role,
    Verb,
    Verdict,
    Weights,
    Welcome,
)  # fmt: skip
from switch_emu.node.actions import (
    Decide,
    Discard,
    Fold,
    LoadPage,
    OpenStore,
    Prepare,
    ReadWeights,
    RecordAttempt,
    Spill,
    StoreFacts,
    Update,
)  # fmt: skip
from switch_emu.node.sums import ChunkSum, StepSums
from switch_emu.switch.members import Members, RefusedError, ranks_text
from switch_emu.switch.slots import Contribution, OverlapError

MessageT = TypeVar("MessageT", bound=Message)
Action = (
    Send | Drop | Note | OpenStore | LoadPage | RecordAttempt | Discard | Spill | Fold | Update
    | ReadWeights | Prepare | Decide
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """What a node may hold and have under way."""

    sum_bytes_max: int = 256 * 1024 * 1024
    """Sums in RAM; beyond, they are spilled."""
    updates_max: int = 4
    reads_max: int = 4
    push_window_bytes: int = 32 * 1024 * 1024
    """Credit of the child."""


@dataclass(slots=True)
class _Step:
    """What is known of an undecided step."""

    number: int
    sums: StepSums
    hyper: bytes | None = None
    parts: int | None = None
    """Backward passes; known from `Commit`."""
    pulled: dict[int, None] = field(default_factory=dict)
    """Chunks in the order of their first pull: the forward order."""
    ready: deque[int] = field(default_factory=deque)
    """Chunks whose update may start."""
    updated: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    """Of the trainable chunks: page written, or left as it is because no rank had a gradient."""
    unchanged: set[int] = field(default_factory=set)
    verdict: Verdict | None = None
    preparing: bool = False


class NodeCore:
    """See the module."""

    def __init__(
        self, *, job: int, incarnation: int, ranks: int, rank: int = 0,
        limits: NodeLimits | None = None,
    ) -> None:  # fmt: skip
        self._limits = limits or NodeLimits()
        self._ranks = ranks
        self._actions: list[Action] = []
        self._me = {"job": job, "role": Role.NODE, "rank": rank, "incarnation": incarnation}
        self._members = Members(job=job, children=[ranks])
        self._hello: tuple[str, Hello] | None = None
        """A child that waits for the store to be opened."""
        self._facts: StoreFacts | None = None
        self._description: Description | None = None
        self._trainable: tuple[int, ...] = ()
        self._epoch = self._generation = self._attempt = self._step = 0
        self._loaded = False
        self._loading: set[int] = set()
        self._pages_loaded: set[int] = set()
        self._steps: dict[int, _Step] = {}
        self._skip: Verdict | None = None
        """The last verdict that skipped a step, and the attempt it ended."""
        self._skipped_attempt = -1
        self._decided: Decided | None = None
        self._abort_text: str | None = None
        """An abort that waits for the step to be decided."""
        self._updates: dict[tuple[int, int], Update] = {}
        """Under way, of any attempt: (attempt, chunk)."""
        self._folds: set[tuple[int, int]] = set()
        self._discard = False
        self._pulls: dict[tuple[int, int], set[int]] = {}
        """(step, chunk) -> uses that were asked for and cannot be served yet."""
        self._reads: deque[ReadWeights] = deque()
        self._reads_under_way: set[ReadWeights] = set()
        self._ram: dict[int, int] = {}
        self._ram_bytes = 0
        self.spilled_count = 0

    # ---------------------------------------------------------------------- events

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        member = self._members.of(peer, message.incarnation)
        if isinstance(message, Hello):
            self._hello_came(peer, message, payload)
        elif member is None:
            self._refuse_data(message, payload)
            self._tell(peer, self._ours(Rejoin))
        elif message.attempt > self._attempt:
            self._refuse_data(message, payload)  # nobody can know of it before we do
        elif message.attempt < self._attempt or message.generation != self._generation:
            self._refuse_data(message, payload)
            if message.attempt == self._skipped_attempt and self._skip is not None:
                self._tell(peer, replace(self._skip, attempt=self._attempt))
            elif not (isinstance(message, Commit) and self._answer_commit(message.step)):
                text = f"attempt {message.attempt} is over, {self._attempt} counts"
                self._tell(peer, self._ours(Abort, loaded=self._loaded, text=text))
        else:
            self._handle(message, payload, payload_bytes)
        return self._take()

    def store_opened(self, facts: StoreFacts) -> list[Action]:
        """The store is open: at the start, or because `OpenStore` asked for it."""
        self._facts = facts
        self._description = parse_description(facts.description)
        chunks = self._description.layout.chunks
        self._trainable = tuple(chunk.index for chunk in chunks if chunk.trainable)
        self._generation, self._attempt = facts.generation, facts.attempt
        self._epoch = facts.epoch if facts.job == self._me["job"] else facts.epoch + 1
        self._step, self._loaded = facts.version or 0, facts.version is not None
        if self._step > 0:
            self._decided = self._ours(
                Decided, step=self._step - 1, applied=facts.applied, grad_norm=facts.grad_norm
            )
        if self._hello is not None:
            (peer, hello), self._hello = self._hello, None
            self._join(peer, hello, facts.description)
        return self._take()

    def store_refused(self, text: str) -> list[Action]:
        """No store can be made for this job."""
        if self._hello is not None:
            (peer, _), self._hello = self._hello, None
            self._tell(peer, self._ours(Refuse, text=text[:1000]))
        return self._take()

    def page_loaded(self, chunk: int) -> list[Action]:
        """Initial weights are in their page; when all are, version 0 is decided."""
        self._pages_loaded.add(chunk)
        self._announce(self._receipt(Verb.LOAD, 0, chunk, 0))
        if len(self._pages_loaded) == len(self._layout.chunks):
            self._prepare(-1, Verdict(**self._stamp(step=0), applied=True, grad_norm=0.0))
        return self._take()

    def folded(
        self, fold: Fold, squares: tuple[float, ...], payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """A part was added to a chunk's total; `payload` is the new total."""
        self._folds.discard((fold.attempt, fold.chunk))
        for said in (fold.total, *fold.contributions):
            if said is not None:
                self._drop_sum(said.payload)
        if fold.attempt != self._attempt:
            self._drop(payload)
        else:
            entry = self._steps[fold.step].sums.chunks[fold.chunk]
            entry.squares, entry.folding = squares, False
            self._hold(payload, payload_bytes)
            weight = entry.parts[fold.part].contributions[0].weight
            entry.total = Contribution(self._ranks, weight, True, "float32", payload, payload_bytes)
            entry.folded_count += 1
            self._advance_fold(self._steps[fold.step], fold.chunk)
        self._settle()
        return self._take()

    def updated(
        self, update: Update, squares: tuple[float, ...], weights: Payload | None
    ) -> list[Action]:
        """A page has its new values; `weights` are there if `update.publish` asked for them."""
        for said in update.contributions:
            self._drop_sum(said.payload)
        if update.attempt == self._attempt:
            step = self._steps[update.step]
            entry = step.sums.chunks[update.chunk]
            if self._streaming:
                entry.squares = squares
            step.updated.add(update.chunk)
            parts = self._pulls.pop((update.step + 1, update.chunk), set())
            if weights is None:
                if parts:
                    self._pulls[update.step + 1, update.chunk] = parts
            elif step.verdict is None or step.verdict.applied:
                self._send_weights(update.step + 1, update.chunk, parts, weights)
        self._drop(weights)
        self._settle()
        return self._take()

    def written(self, update: Update) -> list[Action]:
        """The page's new values are on its other side."""
        del self._updates[update.attempt, update.chunk]
        if update.attempt == self._attempt:
            self._steps[update.step].written.add(update.chunk)
            self._serve(update.step + 1, update.chunk)
        self._settle()
        return self._take()

    def weights_read(self, read: ReadWeights, payload: Payload | None) -> list[Action]:
        """The weights that `read` asked for; None if that version has gone meanwhile."""
        self._reads_under_way.discard(read)
        if payload is not None and read.attempt == self._attempt:
            self._send_weights(read.step, read.chunk, set(read.parts), payload)
        self._drop(payload)
        self._schedule_reads()
        return self._take()

    def prepared(self, prepare: Prepare) -> list[Action]:
        """The step is durable, not yet announced."""
        self._actions.append(Decide(prepare.version, prepare.attempt))
        return self._take()

    def decided(self, decide: Decide) -> list[Action]:
        """The step is decided: announce it and go on with the next."""
        if not self._loaded:
            self._loaded = True
            self._note("node.loaded", chunk_count=len(self._layout.chunks))
        else:
            step = self._steps.pop(self._step)
            assert step.verdict is not None
            for payload in step.sums.payloads():
                self._drop_sum(payload)
            self._step += 1
            self._decided = self._ours(
                Decided, step=step.number, applied=step.verdict.applied,
                grad_norm=step.verdict.grad_norm,
            )  # fmt: skip
            self._announce(self._decided)
            self._note(
                "node.step", step=step.number, applied=step.verdict.applied,
                grad_norm=step.verdict.grad_norm, attempt=self._attempt,
            )  # fmt: skip
            self._pulls = {key: parts for key, parts in self._pulls.items() if key[0] >= self._step}
            self._reads = deque(read for read in self._reads if read.step >= self._step)
        if self._abort_text is not None:
            text, self._abort_text = self._abort_text, None
            self._abort(text)
        for chunk in [chunk for version, chunk in self._pulls if version == self._step]:
            self._serve(self._step, chunk)
        self._settle()
        return self._take()

    @property
    def finished(self) -> bool:
        """The child has left and nothing is under way."""
        return self._members.all_left and not self._updates and not self._steps_open

    @property
    def next_step(self) -> int:
        """The first undecided step."""
        return self._step

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._members.complete:
            return f"Hello of ranks {ranks_text([self._ranks])}"
        if not self._loaded:
            missing = len(self._layout.chunks) - len(self._pages_loaded)
            return f"initial weights of {missing} chunks from rank 0"
        step = self._steps.get(self._step)
        if step is None:
            return f"step {self._step}: the first gradient"
        for chunk in self._trainable:
            late = step.sums.missing_ranks(chunk)
            if late:
                return f"step {step.number}: chunk {chunk} of ranks {ranks_text([late])}"
        if step.parts is None:
            return f"step {step.number}: commit"
        return f"step {step.number}: {len(self._trainable) - len(step.written)} pages to be written"

    # ---------------------------------------------------------------------- membership

    def _hello_came(self, peer: str, hello: Hello, description: bytes) -> None:
        if self._facts is None:
            if self._hello is None:
                self._actions.append(OpenStore(description))
            self._hello = (peer, hello)
            return
        self._join(peer, hello, description)

    def _join(self, peer: str, hello: Hello, description: bytes) -> None:
        assert self._facts is not None
        was_complete = self._members.complete
        try:
            if description != self._facts.description:
                lines = "; ".join(differences(description, self._facts.description))
                raise RefusedError(
                    f"the state is that of another job: {lines}"[:880]
                    + "; give the right --state, or a new directory"
                )
            replaced = self._members.join(peer, hello, description)
        except RefusedError as exc:
            self._note("node.refused", level="WARNING", peer=peer, text=str(exc))
            self._tell(peer, self._ours(Refuse, text=str(exc)))
            return
        if was_complete and replaced:
            self._request_abort("the switch was started again")
        self._tell(
            peer,
            self._ours(
                Welcome, loaded=self._loaded, push_window_bytes=self._limits.push_window_bytes
            ),
        )

    # ---------------------------------------------------------------------- messages

    def _handle(self, m: Message, payload: Any, payload_bytes: int) -> None:
        if isinstance(m, Push):
            self._push(m, payload, payload_bytes)
        elif isinstance(m, Pull):
            self._pull(m)
        elif isinstance(m, Load):
            self._load(m, payload)
        elif isinstance(m, Begin):
            if self._is_open(m.step):
                step = self._step_of(m.step)
                step.hyper = step.hyper if step.hyper is not None else payload
            self._announce(self._receipt(Verb.BEGIN, m.step, 0, 0))
            self._settle()
        elif isinstance(m, Commit):
            self._commit(m, payload)
        elif isinstance(m, Cancel):
            self._request_abort(m.text)
        elif isinstance(m, Leave):
            for peer in self._members.peers:
                member = self._members.of(peer, m.incarnation)
                if member is not None:
                    member.left = True
            self._announce(self._receipt(Verb.LEAVE, m.step, 0, 0))
        else:
            self._refuse_data(m, payload)

    def _is_open(self, step: int) -> bool:
        return self._loaded and self._step <= step <= self._step + 1

    def _step_of(self, number: int) -> _Step:
        return self._steps.setdefault(number, _Step(number, StepSums(self._ranks)))

    def _load(self, m: Load, payload: Payload) -> None:
        if m.chunk in self._pages_loaded or self._loaded:
            self._announce(self._receipt(Verb.LOAD, 0, m.chunk, 0))
            self._drop(payload)
        elif m.chunk in self._loading or m.chunk >= len(self._layout.chunks):
            self._drop(payload)
        else:
            self._loading.add(m.chunk)
            self._actions.append(LoadPage(m.chunk, payload))

    def _push(self, m: Push, payload: Payload | None, payload_bytes: int) -> None:
        receipt = self._receipt(Verb.PUSH, m.step, m.chunk, m.part, m.contributors)
        if not self._is_open(m.step):
            self._drop(payload)
            if m.step < self._step:
                self._announce(receipt)
            return
        if not self._fits(m, payload_bytes):
            self._drop(payload)
            return
        step = self._step_of(m.step)
        said = Contribution(m.contributors, m.weight, m.last, m.dtype, payload, payload_bytes)
        try:
            is_new = step.sums.add(m.chunk, m.part, said)
        except OverlapError as exc:
            self._drop(payload)
            self._request_abort(f"chunk {m.chunk}: {exc}")
            return
        self._announce(receipt)
        if not is_new:
            self._drop(payload)
            return
        if payload is not None:
            self._hold(payload, payload_bytes)
        entry = step.sums.chunks[m.chunk]
        if not entry.parts[m.part].complete:
            return
        if not self._streaming:
            self._advance_fold(step, m.chunk)
        elif m.part == 0 and entry.parts[0].contributions[0].last:
            self._ready(step, m.chunk)
        self._settle()

    def _fits(self, m: Push, payload_bytes: int) -> bool:
        """Whether a gradient belongs to the layout; one that does not is nobody's."""
        chunks = self._layout.chunks
        is_known = m.chunk < len(chunks) and chunks[m.chunk].trainable and m.dtype in DTYPE_BYTES
        if is_known and payload_bytes in (0, chunks[m.chunk].elems * DTYPE_BYTES[m.dtype]):
            return True
        self._note(
            "node.misfit", level="WARNING", chunk=m.chunk, dtype=m.dtype, bytes=payload_bytes
        )
        return False

    def _ready(self, step: _Step, chunk: int) -> None:
        entry = step.sums.chunks[chunk]
        if self._gradient_of(entry):
            step.ready.append(chunk)
            return
        for chunks in (step.unchanged, step.updated, step.written):
            chunks.add(chunk)
        self._serve(step.number + 1, chunk)

    def _gradient_of(self, entry: ChunkSum) -> tuple[Contribution, ...]:
        """What an update adds: the one part's contributions, or the total of the folded parts."""
        if self._streaming:
            return tuple(entry.parts[0].payloads())
        return () if entry.total is None else (entry.total,)

    def _advance_fold(self, step: _Step, chunk: int) -> None:
        """Fold the next part of a chunk, if it is complete and none is being folded."""
        entry = step.sums.chunks[chunk]
        while not entry.folding and entry.complete_up_to(entry.folded_count + 1):
            part = entry.parts[entry.folded_count]
            present = part.payloads()
            if not present:
                entry.folded_count += 1
                continue
            entry.folding = True
            fold = Fold(
                chunk, step.number, self._attempt, entry.folded_count, entry.total, tuple(present)
            )
            part.contributions = [
                Contribution(c.contributors, c.weight, c.last, c.dtype, None)
                for c in part.contributions
            ]  # the fold has their payloads now
            entry.total = None
            self._folds.add((self._attempt, chunk))
            self._actions.append(fold)

    def _commit(self, m: Commit, hyper: bytes) -> None:
        if self._answer_commit(m.step) or not self._is_open(m.step) or m.step != self._step:
            return
        step = self._step_of(m.step)
        if step.parts is None:
            step.parts = m.parts
            if not self._streaming:
                step.hyper = hyper
        self._settle()

    def _answer_commit(self, number: int) -> bool:
        step = self._steps.get(number)
        if step is not None and step.verdict is not None:
            self._announce(self._ours(
                Verdict, step=number, applied=step.verdict.applied,
                grad_norm=step.verdict.grad_norm,
            ))  # fmt: skip
            return True
        if self._decided is not None and self._decided.step == number:
            self._announce(self._ours(
                Decided, step=number, applied=self._decided.applied,
                grad_norm=self._decided.grad_norm,
            ))  # fmt: skip
            return True
        return False

    # ---------------------------------------------------------------------- pulls

    def _pull(self, m: Pull) -> None:
        if not self._step <= m.step <= self._step + 1 or m.chunk >= len(self._layout.chunks):
            return
        if m.step == self._step:
            self._step_of(m.step).pulled.setdefault(m.chunk)
        self._pulls.setdefault((m.step, m.chunk), set()).add(m.part)
        self._serve(m.step, m.chunk)

    def _serve(self, number: int, chunk: int) -> None:
        """Read the weights that were asked for, if they are there to be read."""
        if not self._loaded or (number, chunk) not in self._pulls:
            return
        version: int | None = number
        if number == self._step + 1:
            step = self._steps.get(self._step)
            skipped = step is not None and step.verdict is not None and not step.verdict.applied
            is_written = step is not None and chunk in step.written
            is_unchanged = step is not None and chunk in step.unchanged
            if not self._layout.chunks[chunk].trainable or is_unchanged:
                version = None  # the same in both versions
            elif not is_written or skipped:
                return
        parts = tuple(sorted(self._pulls.pop((number, chunk))))
        self._reads.append(ReadWeights(chunk, number, version, self._attempt, parts))
        self._schedule_reads()

    def _schedule_reads(self) -> None:
        while self._reads and len(self._reads_under_way) < self._limits.reads_max:
            read = self._reads.popleft()
            if read.attempt == self._attempt:
                self._reads_under_way.add(read)
                self._actions.append(read)

    def _send_weights(self, step: int, chunk: int, parts: set[int], payload: Payload) -> None:
        dtype = self._layout.chunks[chunk].wire_dtype
        for part in sorted(parts):
            weights = self._ours(Weights, step=step, chunk=chunk, part=part, dtype=dtype)
            self._actions.append(Send(self._members.peers, weights, payload))

    # ---------------------------------------------------------------------- the course of a step

    def _settle(self) -> None:
        """Do what has become possible: discard, start updates, judge, prepare."""
        step = self._steps.get(self._step)
        if step is not None and step.verdict is None and step.parts is not None:
            self._judge(step, step.parts)
        if self._discard and not self._updates:
            self._discard = False
            self._actions.append(Discard(self._attempt))
        if step is None or step.preparing:
            return
        self._schedule_updates(step)
        verdict = step.verdict
        if verdict is None or self._updates or self._discard:
            return
        if not verdict.applied or len(step.written) == len(self._trainable):
            step.preparing = True
            self._prepare(step.number, verdict)

    def _schedule_updates(self, step: _Step) -> None:
        late_reads = any(read.step < step.number for read in self._reads_under_way)
        if self._discard or step.hyper is None or late_reads:
            return  # a read of version t must end before t + 2 takes its side
        while step.ready and len(self._updates) < self._limits.updates_max:
            chunk = step.ready.popleft()
            entry = step.sums.chunks[chunk]
            update = Update(
                chunk=chunk,
                step=step.number,
                attempt=self._attempt,
                contributions=self._gradient_of(entry),
                divisor=entry.weight,
                grad_norm=None if step.verdict is None else step.verdict.grad_norm,
                hyper=step.hyper,
                publish=(step.number + 1, chunk) in self._pulls,
            )
            entry.total = None
            for part in entry.parts.values():
                part.contributions = [
                    Contribution(c.contributors, c.weight, c.last, c.dtype, None)
                    for c in part.contributions
                ]  # the update has their payloads now
            self._updates[self._attempt, chunk] = update
            self._actions.append(update)

    def _judge(self, step: _Step, parts: int) -> None:
        """verdict(t): every sum complete, measured and finite; or the step is skipped."""
        sums = step.sums.chunks
        for chunk in self._trainable:
            entry = sums.get(chunk)
            if entry is None or not entry.complete_up_to(parts):
                return
            if self._streaming and chunk not in step.updated:
                return
            if not self._streaming and entry.folded_count < parts:
                return
        norm = self._norm(sums)
        applied = math.isfinite(norm)
        if not applied:
            self._skipped_attempt = self._attempt
            self._raise_attempt()
        step.verdict = self._ours(Verdict, step=step.number, applied=applied, grad_norm=norm)
        self._announce(step.verdict)
        if not applied:
            self._skip = step.verdict
            step.ready.clear()
            self._reads.clear()
            self._note("node.skipped", level="WARNING", step=step.number, grad_norm=norm)
        elif not self._streaming:
            for chunk in self._forward_order(step):
                self._ready(step, chunk)

    def _forward_order(self, step: _Step) -> list[int]:
        trainable = set(self._trainable)
        pulled = [chunk for chunk in step.pulled if chunk in trainable]
        return [*pulled, *(chunk for chunk in self._trainable if chunk not in step.pulled)]

    def _norm(self, sums: dict[int, ChunkSum]) -> float:
        """Global norm of the mean gradient: exact sums of block squares, per divisor."""
        blocks: dict[float, list[float]] = {}
        for chunk in self._trainable:
            blocks.setdefault(sums[chunk].weight, []).extend(sums[chunk].squares)
        if not all(math.isfinite(square) for squares in blocks.values() for square in squares):
            return math.inf
        return math.sqrt(math.fsum(math.fsum(s) / (w * w) for w, s in sorted(blocks.items())))

    def _prepare(self, number: int, verdict: Verdict) -> None:
        step = self._steps.get(number)
        hyper = b"" if step is None or step.hyper is None else step.hyper
        self._actions.append(
            Prepare(
                version=number + 1,
                attempt=self._attempt,
                epoch=self._epoch,
                contributors=self._ranks,
                applied=verdict.applied,
                grad_norm=verdict.grad_norm,
                hyper=hyper,
            )
        )

    # ---------------------------------------------------------------------- aborts

    def _request_abort(self, text: str) -> None:
        step = self._steps.get(self._step)
        if (step is not None and step.verdict is not None) or not self._loaded:
            self._abort_text = text if self._loaded else None
            return
        self._abort(text)
        self._settle()

    def _abort(self, text: str) -> None:
        self._raise_attempt()
        for step in self._steps.values():
            for payload in step.sums.payloads():
                self._drop_sum(payload)
        self._steps.clear()
        self._pulls.clear()
        self._reads.clear()
        self._note("node.abort", level="WARNING", step=self._step, attempt=self._attempt, text=text)
        self._announce(self._ours(Abort, loaded=self._loaded, text=text[:1000]))

    def _raise_attempt(self) -> None:
        self._attempt += 1
        assert self._attempt < INT64_MAX
        self._discard = True
        self._actions.append(RecordAttempt(self._attempt))

    # ---------------------------------------------------------------------- helpers

    @property
    def _layout(self) -> Layout:
        assert self._description is not None
        return self._description.layout

    @property
    def _streaming(self) -> bool:
        assert self._description is not None
        return self._description.update == "streaming"

    @property
    def _steps_open(self) -> bool:
        return any(step.parts is not None for step in self._steps.values())

    def _hold(self, payload: Payload, payload_bytes: int) -> None:
        """Count a sum's bytes; beyond the budget it goes to the spill file."""
        if self._ram_bytes + payload_bytes > self._limits.sum_bytes_max:
            self.spilled_count += 1
            self._actions.append(Spill(payload))
            return
        self._ram[id(payload)] = payload_bytes
        self._ram_bytes += payload_bytes

    def _drop_sum(self, payload: Payload | None) -> None:
        if payload is not None:
            self._ram_bytes -= self._ram.pop(id(payload), 0)
            self._drop(payload)

    def _drop(self, payload: Payload | None) -> None:
        if payload is not None:
            self._actions.append(Drop(payload))

    def _refuse_data(self, m: Message, payload: Any) -> None:
        if isinstance(m, DataMessage):
            self._drop(payload)

    def _receipt(
        self, verb: Verb, step: int, chunk: int, part: int, contributors: int = 0
    ) -> Received:
        return self._ours(
            Received, step=step, chunk=chunk, part=part, verb=verb, contributors=contributors
        )

    def _stamp(self, **fields: Any) -> dict[str, Any]:
        stamped = {
            "epoch": self._epoch, "step": self._step, "attempt": self._attempt,
            "generation": self._generation,
        }  # fmt: skip
        return {**self._me, **stamped, **fields}

    def _ours(self, kind: type[MessageT], **fields: Any) -> MessageT:
        return kind(**self._stamp(**fields))

    def _tell(self, peer: str, message: Message) -> None:
        self._actions.append(Send((peer,), message))

    def _announce(self, message: Message) -> None:
        self._actions.append(Send(self._members.peers, message))

    def _note(self, name: str, level: str = "INFO", **fields: object) -> None:
        self._actions.append(Note(name, tuple(fields.items()), level))

    def _take(self) -> list[Action]:
        taken = self._actions[:]
        self._actions.clear()
        return taken
