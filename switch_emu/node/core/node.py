"""The optimizer node as a state machine: when a page is read, updated, written, published, decided.

Its child is a switch (or the node's own, with `--no-switch`) that speaks for all ranks. Pure: an
event and a time in, actions out; the pipeline does what the actions say and reports back.

One step t, and what starts each change:

    sums come in       `Push` of every chunk, by parts, from all ranks
    streaming          a complete sum is updated at once: Update -> updated -> written
    at_step            a complete part is folded: Fold -> folded; pages wait for the verdict
    verdict(t)         `Commit` is in and every sum is complete, measured and finite
    at_step            now Update -> updated -> written, in the order of the forward
    decided(t)         every page is written, and what workers keep beside the version:
                       Prepare -> prepared, Decide -> decided

Weights for step t+1 are published as soon as a page is updated, tentative until verdict(t). Pages
of t+1 are updated only after decided(t): until then the other side of every page is step t-1's.

An abort raises `attempt`, which is durable and never resets; whatever was computed under an older
one is stale. Between verdict(t) and decided(t) an abort waits: step t is as good as decided. A step
whose sums are not finite is skipped: nothing of it stays, and a new attempt voids what streamed.

Where there are several nodes, each owns some chunks, and `joint.py` takes verdict and decision for
all; a single node is all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import PARENT, Payload
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from switch_emu.node.core import actions as do
from switch_emu.node.core.gathering import NodeGathering
from switch_emu.node.core.membership import Action
from switch_emu.node.core.readers import Readers
from switch_emu.node.core.step import Step


class NodeCore(NodeGathering):
    """See the module. `ranks` is the bitmap of all ranks of the job.

    What comes in for a step is held in `gathering.py`, weights go out in `serving.py`; attempts and
    what several nodes agree on are in `joint.py`; the store, joining and initial weights are in
    `membership.py`.
    """

    def __init__(
        self, *, job: int, incarnation: int, ranks: int, place: do.NodePlace | None = None,
        limits: do.NodeLimits | None = None, retry: RetryPolicy | None = None,
        groups: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`groups`: the ranks that each switch of a tree sums, the smaller ones first."""
        super().__init__(
            job, incarnation, ranks, place or do.NodePlace(), limits or do.NodeLimits(),
            retry or RetryPolicy(),
        )  # fmt: skip
        self.groups = tuple(groups)
        self._updates: dict[tuple[int, int], do.Update] = {}
        """Under way, of any attempt: (attempt, chunk)."""
        self.readers = Readers(self._actions, self._ours)
        """Who reads a decided version while training goes on."""

    # ---------------------------------------------------------------------- messages

    def received(
        self, now_ns: int, peer: str, message: wire.Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        m, self._now_ns = message, now_ns
        if peer == PARENT:
            self._from_first(m)
        elif m.role is Role.NODE and self._place.count > 1 and not m.IS_DATA:
            self._from_node(peer, m, payload)
        elif isinstance(m, wire.ReaderRequest):
            self.readers.received(now_ns, peer, m, loaded=self._loaded)
        elif isinstance(m, wire.Hello):
            self._hello_came(peer, m, payload)
        elif self._members.of(peer, m.incarnation) is None:
            self._refuse(m, payload)
            self._tell(peer, self._ours(wire.Rejoin))
        elif isinstance(m, wire.Present):
            self._tell(peer, self._receipt(m, Verb.PRESENT, m.contributors))
            self._is_heard(m.contributors, (m.incarnation, m.roll))
        elif m.attempt > self._attempt:
            self._refuse(m, payload)  # nobody can know of it before we do
        elif m.attempt < self._attempt or m.generation != self._generation:
            self._refuse(m, payload)
            self._answer_stale(peer, m)
        elif isinstance(m, wire.Push):
            self._push(m, payload, payload_bytes)
        elif isinstance(m, wire.Pull):
            self._pull(m)
        elif isinstance(m, wire.Load):
            self._load(m, payload, payload_bytes)
        elif isinstance(m, wire.Keep):
            self._keep(m, payload)
        elif isinstance(m, wire.Begin):
            self._begin(m, payload)
        elif isinstance(m, wire.Propose):
            self._propose(m, payload)
        elif isinstance(m, wire.Confirm):
            self._confirm(peer, m)
        elif isinstance(m, wire.Commit):
            self._commit(peer, m, payload)
        elif isinstance(m, wire.Cancel):
            self._request_abort(m.text, is_lost=self._lacks_pieces_of(m.lost))
        elif isinstance(m, wire.Leave):
            self._members.leave(peer)
            self._tell_all(self._receipt(m, Verb.LEAVE))
            self._leave_if_done()
        else:
            self._refuse(m, payload)
        return self._take()

    def lost(self, peer: str) -> None:
        """The connection to a child has ended: what another says in its name may be true."""
        self._members.lost(peer)

    def _push(self, m: wire.Push, payload: Payload | None, payload_bytes: int) -> None:
        step = self._gather(m, payload, payload_bytes)
        if step is not None:
            self._came(step, m.chunk, m.part % wire.RESENT_PART)
            self._settle()

    def _came(self, step: Step, chunk: int, number: int) -> None:
        """A contribution to a part came, or what all of them are together is known."""
        part = step.sums.part(chunk, number)
        if part.contributors == self._members.active and not part.complete:
            self._inspect(step, chunk, number)
        if part.complete and not self._streaming:
            self._fold_next(step, chunk)
        elif part.complete and number == 0 and part.contributions[0].last:
            self._make_ready(step, chunk)

    # ---------------------------------------------------------------------- what was done

    def inspected(self, done: do.Inspect, *, fits: bool) -> list[Action]:
        """Whether the encoded contributions to a part are a sum."""
        step = self._looked_at(done, fits=fits)
        if step is not None and fits:
            self._came(step, done.chunk, done.part)
        self._settle()
        return self._take()

    def updated(
        self, update: do.Update, squares: tuple[float, ...], weights: Payload | None,
        *, in_place: bool = False,
    ) -> list[Action]:  # fmt: skip
        """A page has its new values; `weights` are there if `update.publish` asked for them."""
        for said in update.contributions:
            self.held.let_go(said.payload)
        if update.attempt == self._attempt:
            step = self._steps[update.step]
            if self._streaming:
                step.sums.chunks[update.chunk].squares = squares
            step.updated.add(update.chunk)
            if weights is not None:
                self._publish(update, weights, in_place)
        self._drop(weights)
        self._settle()
        return self._take()

    def written(self, update: do.Update) -> list[Action]:
        """The page's new values are on its other side."""
        del self._updates[update.attempt, update.chunk]
        if update.attempt == self._attempt:
            self._steps[update.step].written.add(update.chunk)
            self._serve(update.step + 1, update.chunk)
        self._settle()
        return self._take()

    def decided(self, decide: do.Decide) -> list[Action]:
        """The step is decided: announce it and go on with the next."""
        if self._loaded:
            step = self._steps.pop(self._step, None)
            self._step += 1
            if step is not None:  # None: it was prepared before this node was started again
                self._let_go(step)
        self._loaded = True
        self._was_decided()
        self._go_on()
        self._go_on_serving()
        self._settle()
        return self._take()

    # ---------------------------------------------------------------------- readers

    def pinned(self, reader: int, version: int, facts: bytes) -> list[Action]:
        """A version is held for a reader."""
        self.readers.pinned(reader, version, facts)
        return self._take()

    def pin_failed(self, reader: int, text: str) -> list[Action]:
        """No version can be held for a reader."""
        self.readers.refused(reader, text)
        return self._take()

    def field_read(
        self, read: do.ReadField, payload: Payload | None, text: str = ""
    ) -> list[Action]:
        """What a reader asked for; None: it cannot be had, and `text` says why."""
        self.readers.field_read(read, payload, text)
        return self._take()

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due; forget readers that are not heard of any more."""
        self._now_ns = now_ns
        self._uplink.tick(now_ns)
        self.readers.tick(now_ns)
        return self._take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        due = (self._uplink.next_tick_ns(), self.readers.next_tick_ns())
        return min((at_ns for at_ns in due if at_ns is not None), default=None)

    # ---------------------------------------------------------------------- the course of a step

    def _settle(self) -> None:
        """Do what has become possible: measure, discard, start updates, prepare."""
        step = self._steps.get(self._step)
        if step is not None and not step.is_stated and step.is_measured(self._trainable):
            self._measured(step)
        if self._discard and not self._updates and not self._loads_count:
            self._discard = False
            self._actions.append(do.Discard(self._attempt))
            self._start_loads()
        self._leave_if_done()
        if step is None or step.preparing:
            return
        self._start_updates(step)
        if step.verdict is None or self._updates or self._discard:
            return
        is_complete = not step.is_applied or len(step.written) == len(self._trainable)
        keeps = step.keeps and self._place.number == 0  # node 0 keeps it for all
        if is_complete and (not keeps or step.has_kept(self._members.active)):
            step.preparing = True
            self._prepare(
                step.number + 1, step.verdict, step.hyper, step.attempt if keeps else None
            )

    def _judge(self, step: Step, norm: float, attempt: int, *, applied: bool) -> None:
        """verdict(t): every sum complete, measured and finite; or the step is skipped."""
        if not applied:
            self._outcomes.skipped_attempt = self._attempt
            self._raise_attempt(attempt)
        verdict = self._ours(wire.Verdict, step=step.number, applied=applied, grad_norm=norm)
        step.verdict = self._outcomes.verdict = verdict
        self._tell_all(verdict)
        self._tell_nodes(verdict)
        self._note("node.verdict", level="DEBUG", step=step.number, applied=applied)
        if not applied:
            self._outcomes.skip = verdict
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
            update = step.next_update(self._attempt, self._publisher)
            self._updates[self._attempt, update.chunk] = update
            self._actions.append(update)

    def is_member(self, peer: str) -> bool:
        """Whether a connection is that of a child that has joined, or of another node."""
        is_node = peer == PARENT or peer in self._nodes.peers
        return is_node or self._members.member_at(peer) is not None

    def name_of(self, peer: str) -> str:
        """What a connection is, for people."""
        return self._members.name_of(peer)

    def counts(self) -> dict[str, int]:
        """What was counted so far, and what is held now."""
        return {
            "step_now": self._step,
            "attempt_now": self._attempt,
            "repeated_count": self._uplink.repeated_count,
            "duplicates_count": self.duplicates.total(),
            "spilled_count": self.held.spilled_count,
            "overflow_count": self.overflow_count,
            "sum_bytes_now": self.held.bytes_used,
            "sum_bytes_limit": self._limits.sum_bytes_max,
            "updates_now": len(self._updates),
        }

    @property
    def finished(self) -> bool:
        """The child has left and nothing is under way; so is it at all nodes."""
        return self._is_done and self._nodes.all_left and self._gone

    @property
    def node_peers(self) -> tuple[str, ...]:
        """At node 0: connections of the other nodes."""
        return self._nodes.peers

    @property
    def _is_done(self) -> bool:
        committed = any(step.parts is not None for step in self._steps.values())
        under_way = self._updates or committed or self._is_loading
        return self._members.all_left and not under_way
