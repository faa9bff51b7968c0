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
from dataclasses import replace
from typing import Any

from luwu.layout import DTYPE_BYTES, Layout
from luwu.wire.actions import Drop, Note, Payload, Send
from luwu.wire.description import Description, differences, parse_description
from luwu.wire.messages import (
    Abort,
    Begin,
    Cancel,
    Commit,
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
from luwu.wire.speaker import Speaker
from switch_emu.node.actions import (
    Decide,
    Discard,
    Fold,
    LoadPage,
    NodeLimits,
    OpenStore,
    Prepare,
    ReadWeights,
    RecordAttempt,
    Spill,
    StoreFacts,
    Update,
)  # fmt: skip
from switch_emu.node.held import HeldSums
from switch_emu.node.publisher import Publisher
from switch_emu.node.step import Step
from switch_emu.node.sums import StepSums
from switch_emu.switch.members import Members, RefusedError, ranks_text
from switch_emu.switch.slots import Contribution, OverlapError

Action = (
    Send | Drop | Note | OpenStore | LoadPage | RecordAttempt | Discard | Spill | Fold | Update
    | ReadWeights | Prepare | Decide
)  # fmt: skip


class NodeCore(Speaker):
    """See the module. `ranks` is the bitmap of all ranks of the job."""

    def __init__(
        self, *, job: int, incarnation: int, ranks: int, rank: int = 0,
        limits: NodeLimits | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job=job, role=Role.NODE, rank=rank, incarnation=incarnation)
        self._limits = limits or NodeLimits()
        self._job, self._ranks = job, ranks
        self._members = Members(job=job, children=[ranks])
        self._hello: tuple[str, Hello] | None = None
        """A child that waits for the store to be opened."""
        self._description: Description | None = None
        self._description_bytes = b""
        self._trainable: tuple[int, ...] = ()
        self._loaded = False
        self._loading: set[int] = set()
        self._pages_loaded: set[int] = set()
        self._steps: dict[int, Step] = {}
        self._decided: Decided | None = None
        self._skip: Verdict | None = None
        """The last verdict that skipped a step, and the attempt it ended."""
        self._skipped_attempt = -1
        self._abort_text: str | None = None
        """An abort that waits for the step to be decided."""
        self._updates: dict[tuple[int, int], Update] = {}
        """Under way, of any attempt: (attempt, chunk)."""
        self._discard = False
        self._publisher = Publisher(self._limits.reads_max)
        self.held = HeldSums(self._limits.sum_bytes_max)

    # ---------------------------------------------------------------------- messages

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None, payload_bytes: int = 0
    ) -> list[Action]:
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        m = message
        if isinstance(m, Hello):
            self._hello_came(peer, m, payload)
        elif self._members.of(peer, m.incarnation) is None:
            self._refuse(m, payload)
            self._tell(peer, self._ours(Rejoin))
        elif m.attempt > self._attempt:
            self._refuse(m, payload)  # nobody can know of it before we do
        elif m.attempt < self._attempt or m.generation != self._generation:
            self._refuse(m, payload)
            self._answer_stale(peer, m)
        elif isinstance(m, Push):
            self._push(m, payload, payload_bytes)
        elif isinstance(m, Pull):
            self._pull(m)
        elif isinstance(m, Load):
            self._load(m, payload, payload_bytes)
        elif isinstance(m, Begin):
            self._begin(m, payload)
        elif isinstance(m, Commit):
            self._commit(m, payload)
        elif isinstance(m, Cancel):
            self._request_abort(m.text)
        elif isinstance(m, Leave):
            self._members.leave(peer)
            self._receipt(Verb.LEAVE, m.step)
        else:
            self._refuse(m, payload)
        return self._take()

    def _answer_stale(self, peer: str, m: Message) -> None:
        if m.attempt == self._skipped_attempt and self._skip is not None:
            self._tell(peer, self._skip)  # nothing of it is lost but weights that streamed ahead
        elif not (isinstance(m, Commit) and self._answer_commit(m.step)):
            text = f"attempt {m.attempt} is over, {self._attempt} counts"
            self._tell(peer, self._ours(Abort, loaded=self._loaded, text=text))

    def _hello_came(self, peer: str, hello: Hello, description: bytes) -> None:
        if self._description is not None:
            self._join(peer, hello, description)
            return
        if self._hello is None:
            self._actions.append(OpenStore(description))
        self._hello = (peer, hello)

    def _join(self, peer: str, hello: Hello, description: bytes) -> None:
        try:
            if description != self._description_bytes:
                lines = "; ".join(differences(description, self._description_bytes))
                raise RefusedError(
                    f"the state is that of another job: {lines}"[:880]
                    + "; give the right --state, or a new directory"
                )
            replaced = self._members.join(peer, hello, description)
        except RefusedError as exc:
            self._note("node.refused", level="WARNING", peer=peer, text=str(exc))
            self._tell(peer, self._ours(Refuse, text=str(exc)))
            return
        if replaced:
            self._request_abort("the switch was started again")
        window_bytes = self._limits.push_window_bytes
        self._tell(peer, self._ours(Welcome, loaded=self._loaded, push_window_bytes=window_bytes))

    def _load(self, m: Load, payload: Payload, payload_bytes: int) -> None:
        if m.chunk in self._pages_loaded or self._loaded:
            self._receipt(Verb.LOAD, 0, m.chunk)
            self._drop(payload)
        elif m.chunk in self._loading or m.chunk >= len(self._layout.chunks):
            self._drop(payload)
        elif payload_bytes != self._layout.chunks[m.chunk].sum_bytes:
            self._note("node.misfit", level="WARNING", chunk=m.chunk, bytes=payload_bytes)
            self._drop(payload)
        else:
            self._loading.add(m.chunk)
            self._actions.append(LoadPage(m.chunk, payload))

    def _push(self, m: Push, payload: Payload | None, payload_bytes: int) -> None:
        is_open = self._is_open(m.step)
        if not is_open or not self._fits(m, payload_bytes, has_payload=payload is not None):
            self._drop(payload)
            if m.step < self._step:  # a repetition of what is in the state
                self._receipt(Verb.PUSH, m.step, m.chunk, m.part, m.contributors)
            return
        step = self._step_of(m.step)
        said = Contribution(m.contributors, m.weight, m.last, m.dtype, payload, payload_bytes)
        try:
            is_new = step.sums.add(m.chunk, m.part, said)
        except OverlapError as exc:
            self._drop(payload)
            self._request_abort(f"chunk {m.chunk}: {exc}")
            return
        self._receipt(Verb.PUSH, m.step, m.chunk, m.part, m.contributors)
        if not is_new:
            self._drop(payload)
            return
        self._hold(payload, payload_bytes)
        part = step.sums.chunks[m.chunk].parts[m.part]
        if not part.complete:
            return
        if not self._streaming:
            self._advance_fold(step, m.chunk)
        elif m.part == 0 and part.contributions[0].last:
            self._make_ready(step, m.chunk)
        self._settle()

    def _fits(self, m: Push, payload_bytes: int, *, has_payload: bool) -> bool:
        """Whether a gradient belongs to the layout; one that does not is nobody's."""
        chunks = self._layout.chunks
        is_known = m.chunk < len(chunks) and chunks[m.chunk].trainable and m.dtype in DTYPE_BYTES
        if is_known and (
            not has_payload or payload_bytes == chunks[m.chunk].elems * DTYPE_BYTES[m.dtype]
        ):
            return True
        self._note(
            "node.misfit", level="WARNING", chunk=m.chunk, dtype=m.dtype, bytes=payload_bytes
        )
        return False

    def _begin(self, m: Begin, hyper: bytes) -> None:
        if m.step > self._step + 1:
            return
        if m.step >= self._step:  # also before the initial weights are durable
            step = self._step_of(m.step)
            step.hyper = hyper if step.hyper is None else step.hyper
        self._receipt(Verb.BEGIN, m.step)
        self._settle()

    def _commit(self, m: Commit, hyper: bytes) -> None:
        if self._answer_commit(m.step) or not self._loaded or m.step != self._step:
            return
        step = self._step_of(m.step)
        if step.parts is None:
            step.parts = m.parts
            if not self._streaming:
                step.hyper = hyper
        self._settle()

    def _answer_commit(self, number: int) -> bool:
        """Say again how a step came out; False if it is not known yet."""
        step = self._steps.get(number)
        said: Message | None = None if step is None else step.verdict
        if said is None and self._decided is not None and self._decided.step == number:
            said = self._decided
        for peer in self._members.peers if said is not None else ():
            assert said is not None
            self._tell(peer, said)
        return said is not None

    def _pull(self, m: Pull) -> None:
        if not self._step <= m.step <= self._step + 1 or m.chunk >= len(self._layout.chunks):
            return
        if m.step == self._step:
            self._step_of(m.step).pulled.setdefault(m.chunk)
        self._publisher.ask(m.step, m.chunk, m.part)
        self._serve(m.step, m.chunk)

    # ---------------------------------------------------------------------- what was done

    def store_opened(self, facts: StoreFacts) -> list[Action]:
        """The store is open: at the start, or because `OpenStore` asked for it."""
        self._description_bytes = facts.description
        self._description = parse_description(facts.description)
        chunks = self._layout.chunks
        self._trainable = tuple(chunk.index for chunk in chunks if chunk.trainable)
        self._generation, self._attempt = facts.generation, facts.attempt
        self._epoch = facts.epoch if facts.job == self._job else facts.epoch + 1
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
        self._receipt(Verb.LOAD, 0, chunk)
        if len(self._pages_loaded) == len(self._layout.chunks):
            self._prepare(0, applied=True, grad_norm=0.0, hyper=b"")
        return self._take()

    def folded(
        self, fold: Fold, squares: tuple[float, ...], payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """A part was added to a chunk's total; `payload` is the new total."""
        for said in (fold.total, *fold.contributions):
            self._let_go(None if said is None else said.payload)
        if fold.attempt != self._attempt:
            self._drop(payload)
        else:
            step = self._steps[fold.step]
            entry = step.sums.chunks[fold.chunk]
            entry.squares, entry.folding = squares, False
            entry.total = Contribution(self._ranks, 0.0, True, "float32", payload, payload_bytes)
            entry.folded_count += 1
            self._hold(payload, payload_bytes)
            self._advance_fold(step, fold.chunk)
        self._settle()
        return self._take()

    def updated(
        self, update: Update, squares: tuple[float, ...], weights: Payload | None
    ) -> list[Action]:
        """A page has its new values; `weights` are there if `update.publish` asked for them."""
        for said in update.contributions:
            self._let_go(said.payload)
        if update.attempt == self._attempt:
            step = self._steps[update.step]
            if self._streaming:
                step.sums.chunks[update.chunk].squares = squares
            step.updated.add(update.chunk)
            if weights is not None:
                parts = self._publisher.take(update.step + 1, update.chunk)
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
        self._publisher.ended(read)
        if payload is not None and read.attempt == self._attempt:
            self._send_weights(read.step, read.chunk, read.parts, payload)
        self._drop(payload)
        self._actions.extend(self._publisher.start())
        self._settle()
        return self._take()

    def prepared(self, prepare: Prepare) -> list[Action]:
        """The step is durable, not yet announced."""
        self._actions.append(Decide(prepare.version, prepare.attempt))
        return self._take()

    def decided(self, decide: Decide) -> list[Action]:
        """The step is decided: announce it and go on with the next."""
        if self._loaded:
            step = self._steps.pop(self._step)
            self._step += 1
            self._announce_decided(step)
        self._loaded = True
        if self._abort_text is not None:
            text, self._abort_text = self._abort_text, None
            self._abort(text)
        for chunk in self._publisher.advance(self._step):
            self._serve(self._step, chunk)
        self._settle()
        return self._take()

    def _announce_decided(self, step: Step) -> None:
        assert step.verdict is not None
        for payload in step.sums.payloads():
            self._let_go(payload)
        applied, norm = step.verdict.applied, step.verdict.grad_norm
        self._decided = self._ours(Decided, step=step.number, applied=applied, grad_norm=norm)
        self._announce(self._members.peers, self._decided)
        self._note("node.step", step=step.number, applied=applied, grad_norm=norm)

    # ---------------------------------------------------------------------- the course of a step

    def _settle(self) -> None:
        """Do what has become possible: judge, discard, start updates, prepare."""
        step = self._steps.get(self._step)
        if step is not None and step.verdict is None and step.is_measured(self._trainable):
            self._judge(step)
        if self._discard and not self._updates:
            self._discard = False
            self._actions.append(Discard(self._attempt))
        if step is None or step.preparing:
            return
        self._start_updates(step)
        if step.verdict is None or self._updates or self._discard:
            return
        if not step.verdict.applied or len(step.written) == len(self._trainable):
            step.preparing = True
            hyper = step.hyper or b""
            verdict = step.verdict
            self._prepare(step.number + 1, verdict.applied, verdict.grad_norm, hyper)

    def _judge(self, step: Step) -> None:
        """verdict(t): every sum complete, measured and finite; or the step is skipped."""
        norm = step.norm(self._trainable)
        applied = math.isfinite(norm)
        if not applied:
            self._skipped_attempt = self._attempt
            self._raise_attempt()
        step.verdict = self._ours(Verdict, step=step.number, applied=applied, grad_norm=norm)
        self._announce(self._members.peers, step.verdict)
        if not applied:
            self._skip = step.verdict
            step.ready.clear()
            self._publisher.clear(waiting=False)
            self._note("node.skipped", level="WARNING", step=step.number, grad_norm=norm)
        elif not self._streaming:
            for chunk in step.forward_order(self._trainable):
                self._make_ready(step, chunk)

    def _make_ready(self, step: Step, chunk: int) -> None:
        if not step.make_ready(chunk):
            self._serve(step.number + 1, chunk)

    def _start_updates(self, step: Step) -> None:
        if self._discard or step.hyper is None or self._publisher.reads_before(step.number):
            return  # a read for step t - 1 must end before its side is written again
        while step.ready and len(self._updates) < self._limits.updates_max:
            chunk = step.ready.popleft()
            weight = step.sums.chunks[chunk].weight
            update = Update(
                chunk=chunk,
                step=step.number,
                attempt=self._attempt,
                contributions=step.take_gradient(chunk),
                divisor=weight,
                grad_norm=None if step.verdict is None else step.verdict.grad_norm,
                hyper=step.hyper,
                publish=self._publisher.awaits(step.number + 1, chunk),
            )
            self._updates[self._attempt, chunk] = update
            self._actions.append(update)

    def _advance_fold(self, step: Step, chunk: int) -> None:
        """Fold the next part of a chunk, if it is complete and none is being folded."""
        entry = step.sums.chunks[chunk]
        while not entry.folding and entry.complete_up_to(entry.folded_count + 1):
            number, part = entry.folded_count, entry.parts[entry.folded_count]
            present = tuple(part.payloads())
            if not present:
                entry.folded_count += 1
                continue
            entry.folding = True
            part.contributions = [replace(c, payload=None) for c in part.contributions]
            total, entry.total = entry.total, None
            self._actions.append(Fold(chunk, step.number, self._attempt, number, total, present))

    def _serve(self, number: int, chunk: int) -> None:
        """Read the weights that were asked for, if they are there to be read."""
        if not self._loaded or not self._publisher.awaits(number, chunk):
            return
        version: int | None = number
        if number == self._step + 1:
            step = self._steps.get(self._step)
            if not self._layout.chunks[chunk].trainable or (step and chunk in step.unchanged):
                version = None  # the same in both versions
            elif (
                step is None
                or chunk not in step.written
                or (step.verdict is not None and not step.verdict.applied)
            ):
                return
        self._publisher.queue(number, chunk, version, self._attempt)
        self._actions.extend(self._publisher.start())

    def _send_weights(
        self, step: int, chunk: int, parts: tuple[int, ...], payload: Payload
    ) -> None:
        dtype = self._layout.chunks[chunk].wire_dtype
        for part in parts:
            weights = self._ours(Weights, step=step, chunk=chunk, part=part, dtype=dtype)
            self._announce(self._members.peers, weights, payload)

    def _prepare(self, version: int, applied: bool, grad_norm: float, hyper: bytes) -> None:
        self._actions.append(
            Prepare(
                version=version,
                attempt=self._attempt,
                epoch=self._epoch,
                contributors=self._ranks,
                applied=applied,
                grad_norm=grad_norm,
                hyper=hyper,
            )
        )

    # ---------------------------------------------------------------------- aborts

    def _request_abort(self, text: str) -> None:
        step = self._steps.get(self._step)
        if not self._loaded:
            return  # nothing was pushed yet
        if step is not None and step.verdict is not None:
            self._abort_text = text
            return
        self._abort(text)
        self._settle()

    def _abort(self, text: str) -> None:
        self._raise_attempt()
        for step in self._steps.values():
            for payload in step.sums.payloads():
                self._let_go(payload)
        self._steps.clear()
        self._publisher.clear(waiting=True)
        self._note("node.abort", level="WARNING", step=self._step, attempt=self._attempt, text=text)
        abort = self._ours(Abort, loaded=self._loaded, text=text[:1000])
        self._announce(self._members.peers, abort)

    def _raise_attempt(self) -> None:
        self._attempt += 1
        self._discard = True
        self._actions.append(RecordAttempt(self._attempt))

    # ---------------------------------------------------------------------- state

    @property
    def finished(self) -> bool:
        """The child has left and nothing is under way."""
        committed = any(step.parts is not None for step in self._steps.values())
        return self._members.all_left and not self._updates and not committed

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
        return f"step {self._step}: " + (
            "the first gradient" if step is None else step.waits_for(self._trainable)
        )

    @property
    def _layout(self) -> Layout:
        assert self._description is not None
        return self._description.layout

    @property
    def _streaming(self) -> bool:
        assert self._description is not None
        return self._description.update == "streaming"

    def _is_open(self, step: int) -> bool:
        return self._loaded and self._step <= step <= self._step + 1

    def _step_of(self, number: int) -> Step:
        if number not in self._steps:
            self._steps[number] = Step(number, StepSums(self._ranks), self._streaming)
        return self._steps[number]

    def _hold(self, payload: Payload | None, payload_bytes: int) -> None:
        if payload is not None and not self.held.add(payload, payload_bytes):
            self._actions.append(Spill(payload))

    def _let_go(self, payload: Payload | None) -> None:
        if payload is not None:
            self.held.remove(payload)
            self._drop(payload)

    def _receipt(
        self, verb: Verb, step: int, chunk: int = 0, part: int = 0, contributors: int = 0
    ) -> None:
        receipt = self._ours(
            Received, step=step, chunk=chunk, part=part, verb=verb, contributors=contributors
        )
        self._announce(self._members.peers, receipt)
