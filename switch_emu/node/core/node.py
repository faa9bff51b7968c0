"""The optimizer node as a state machine: when a page is read, updated, written, published, decided.

Its child is a switch (or the node's own, with `--no-switch`) that speaks for all ranks. Pure: an
event and a time in, actions out; the pipeline does what the actions ask for and reports back.

One step t, and what starts each change:

    sums come in       `Push` of every extent, by parts, from all ranks
    streaming          a complete sum is updated at once: Update -> updated -> written; where the
                       step may be clipped it is folded, and may be updated twice (`gathering.py`)
    at_step            a complete part is folded: Fold -> folded; pages wait for the verdict
    verdict(t)         `Commit` is in and every sum is complete, measured and finite
    at_step            now Update -> updated -> written, in the order of the forward
    decided(t)         every page is written, and so is what workers attach to the version:
                       Prepare -> prepared, Decide -> decided

Weights for step t+1 are published as soon as a page is updated, tentative until verdict(t). Pages
of t+1 are updated only after decided(t): until then the other side of every page is step t-1's.

*In place*, where a state in RAM has one side, t+1 overwrites t: pages are updated when nothing can
end the step any more, so what is attached to it must be here too. Weights that are asked for while
it is not, as by an evaluation in between, are previewed: computed without changing a page.

An abort raises `attempt`, which is durable and never resets; whatever was computed under an older
one is stale. Between verdict(t) and decided(t) an abort waits: step t is as good as decided. A step
whose sums are not finite is skipped: nothing of it stays, and a new attempt voids what streamed.

A single node decides alone, several are led by their switch (`deciding.py`): it sends the
verdict once all have measured, and says when a version that all have prepared is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from luwu.base.retry import LAST_RESORT, RetryPolicy
from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, ranks_text
from luwu.protocol.counted_ranks import CountedRanks
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import earliest
from luwu.wire import messages as wire
from luwu.wire.messages import Role, Verb
from switch_emu.node.core import actions as do
from switch_emu.node.core.actions import Action
from switch_emu.node.core.attachments import Attachments
from switch_emu.node.core.deciding import AbortRequest, Alone, Joint, Judgement, Result
from switch_emu.node.core.gathering import Gathering, Updates
from switch_emu.node.core.membership import Membership
from switch_emu.node.core.readers import Readers
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.step import GradientBudget, Step, Steps
from switch_emu.node.core.whole_pages import Early, Filling, FirstWeights

PREVIEW_NS: Final = 250_000_000
"""So long after the verdict of a step weights are previewed: its pieces mostly come before."""

Table = Mapping[type[wire.Message], str]
"""Kind of message -> the method of `NodeCore`, or of one of its parts, that it is given to."""

FROM_ANYONE: Final[Table] = {
    wire.Hello: "_hello",
    wire.Open: "_reader",
    wire.Read: "_reader",
    wire.Shut: "_reader",
}
"""From a connection that need not be a member's."""
FROM_MEMBER: Final[Table] = {wire.Present: "_present"}
"""From a child that has joined, in whatever attempt."""
FROM_CHILD: Final[Table] = {
    wire.Load: "first_weights.load",
    wire.Pull: "serving.pull",
    wire.Push: "gathering.push",
    wire.Propose: "gathering.propose",
    wire.Begin: "gathering.begin",
    wire.Commit: "gathering.commit",
    wire.Keep: "attachments.keep",
    wire.Cancel: "membership.cancel",
    wire.Leave: "membership.leave",
}
"""From a child that has joined, in the attempt that counts."""
FROM_LEAD: Final[Table] = {
    wire.Adopt: "joint.adopt",
    wire.Verdict: "joint.verdict",
    wire.Resolved: "joint.resolved",
    wire.Refuse: "joint.refused",
    wire.Copy: "serving.copy",
    wire.Page: "filling.page",
}
"""At one of several nodes: from the switch that leads them, in whatever attempt."""


class NodeCore:
    """All parts of the node, and the course of a step."""

    def __init__(
        self, *, job: int, incarnation: int, ranks: int, node: do.NodeNumber | None = None,
        limits: do.NodeLimits | None = None, retry: RetryPolicy | None = None,
        groups: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """`ranks`: bitmap of all ranks of the job.

        `groups`: bitmaps of the ranks that each switch of a tree sums, the smaller ones first.
        """
        self._node, self._limits = node or do.NodeNumber(), limits or do.NodeLimits()
        self.groups, self.world_size = tuple(groups), ranks.bit_count()
        node, limits = self._node, self._limits
        outbox = Outbox(job=job, role=Role.NODE, rank=node.number, incarnation=incarnation)
        children = Children(outbox, [ranks], limits.extent_chunks)
        shard = Shard(node, self.world_size, limits.extent_chunks)
        state = State(outbox, children)
        budget = GradientBudget(outbox, children, limits.sum_bytes_max, limits.raw_bytes_max)
        steps = Steps(outbox, children, shard, budget, self.groups)
        serving = Serving(outbox, children, shard, steps, limits.reads_max)
        self.filling = filling = None if node.is_alone else Filling(outbox, children, shard)
        self.out, self.children, self.shard, self.state = outbox, children, shard, state
        self.budget, self.steps, self.serving = budget, steps, serving
        self.first_weights = FirstWeights(outbox, children, shard, state)
        self.early = Early(outbox, limits.push_window_bytes)
        self.gathering = Gathering(outbox, children, shard, steps, budget, serving, filling)
        self.duplicates = self.gathering.duplicates
        self.attachments = Attachments(outbox, children, steps)
        self.updates = Updates(outbox, shard, steps, budget, serving, filling, limits.updates_max)
        self.membership = Membership(outbox, children, shard, steps)
        workers_min = limits.workers_min if node.is_alone else None
        self.joint: Alone | Joint
        if filling is None:
            self.joint = Alone(outbox, shard, state, steps)
        else:
            retry = retry or LAST_RESORT
            self.joint = Joint(outbox, children, shard, state, steps, filling, limits, retry)
        self.counted = CountedRanks(
            outbox, ranks, workers_min, grows=limits.workers_max is not None
        )
        self.readers = Readers(outbox)
        self._with_attempt = (
            steps, state, self.first_weights, self.early, self.joint, serving,
        )  # fmt: skip
        """Parts with something of an attempt, in the order in which they forget it."""
        self._from_anyone = self._bound(FROM_ANYONE)
        self._from_member = self._bound(FROM_MEMBER)
        self._from_child = self._bound(FROM_CHILD)
        self._from_lead = self._bound({} if node.is_alone else FROM_LEAD)

    def _bound(self, table: Table) -> dict[type[wire.Message], Callable[..., Any]]:
        return {kind: attrgetter(path)(self) for kind, path in table.items()}

    # ---------------------------------------------------------------------- messages

    def received(
        self, now_ns: int, peer: str, message: wire.Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        """A message came. Data payloads are opaque, those of control messages are bytes."""
        m, kind, out = message, type(message), self.out
        out.now_ns = now_ns
        if kind in self._from_anyone:
            self._from_anyone[kind](peer, m, payload)
        elif self.children.members.of(peer, m.incarnation) is None:
            out.ignore(m, payload)
            out.send(peer, out.stamped(wire.Rejoin))
        elif kind in self._from_lead:
            self._act_on(self._from_lead[kind](m, payload, payload_bytes))
        elif kind in self._from_member:
            self._from_member[kind](peer, m)
        elif m.attempt > out.attempt or not self.joint.is_enlisted:
            out.ignore(m, payload)  # it cannot be known before this node knows it
        elif m.attempt < out.attempt or m.generation != out.generation:
            out.ignore(m, payload)
            if self._node.is_alone:
                self.children.answer_stale(peer, m)
        elif kind not in self._from_child:
            out.ignore(m, payload)
        elif not self.children.loaded and self.early.is_early(m):
            self.early.keep(peer, m, payload, payload_bytes)
        else:
            self._act_on(self._from_child[kind](peer, m, payload, payload_bytes))
        return out.take()

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        """The connection to a child has ended: what another sends in its name may be true."""
        self.children.members.lost(peer)
        return []

    def _act_on(self, found: Result) -> None:
        """Do what a part's answer asks for."""
        if found is True:
            self._advance()
        elif isinstance(found, AbortRequest):
            self._request_abort(found)
        elif isinstance(found, Judgement):
            step = self.steps.open
            assert step is not None
            self._judge(step, found)
            self._advance()
        elif isinstance(found, wire.Adopt):
            self._take_over(found)

    def _hello(self, peer: str, m: wire.Hello, description: bytes) -> None:
        if isinstance(self.joint, Joint):
            self.joint.hello(peer, m, description)
            return
        self.membership.hello(peer, m, description)
        self._admit()

    def _admit(self) -> None:
        """Let a child join that waits for the store."""
        if self.shard.description is None:
            return
        joined = self.membership.admit()
        if joined is None:
            return
        if joined.knows_later:
            self._abort("the node was started again on an older copy of its state")
            self._advance()
        if joined.is_restarted and self.children.loaded:  # before, all that it sent comes again
            # The new switch does not know which ranks were started again, and lost their pieces.
            is_lost = self.steps.lacks_pieces_of(self.children.members.active)
            self._request_abort(AbortRequest("the switch was started again", is_lost))
        peer, hello = joined.peer, joined.hello
        self.out.send(peer, self.children.welcome(self._limits.push_window_bytes))
        self._count_ranks(hello.present, (hello.incarnation, hello.roll))

    def _present(self, peer: str, m: wire.Present) -> None:
        self.out.send(peer, self.out.receipt(m, Verb.PRESENT, m.contributors))
        self._count_ranks(m.contributors, (m.incarnation, m.roll))

    def _reader(self, peer: str, m: wire.ReaderRequest, payload: object) -> None:
        has_version = self.children.loaded and not self.steps.is_overwriting
        self.readers.received(self.out.now_ns, peer, m, loaded=has_version)

    # ---------------------------------------------------------------------- what was done

    def store_opened(self, facts: do.StoreFacts) -> list[Action]:
        """The store is open: at the start, or as `OpenStore` or `BeginFilling` asked for it."""
        if facts.job == self.out.job and facts.version is not None:
            self.counted.run_goes_on()
        self.shard.open(facts.description, is_in_place=facts.is_in_place)
        self.budget.bytes_max = self._limits.sum_bytes_max + facts.spare_bytes
        self.state.opened(facts)
        if isinstance(self.joint, Joint):
            self._act_on(self.joint.opened(facts) or True)
        else:
            self._admit()
        return self.out.take()

    def store_refused(self, text: str) -> list[Action]:
        """No store can be made for this job."""
        self.membership.store_refused(text)
        return self.out.take()

    def page_loaded(self, load: do.LoadPage) -> list[Action]:
        """Initial weights are in their page; when all are, version 0 is prepared."""
        self._act_on(self.first_weights.page_loaded(load))
        return self.out.take()

    def page_filled(self, done: do.FillPage) -> list[Action]:
        """A page that came from another node is in its place."""
        assert self.filling is not None
        self.filling.page_filled(done)
        self._advance()
        return self.out.take()

    def page_copied(self, copy: do.CopyPage, payload: Payload | None) -> list[Action]:
        """The page that `copy` asked for; None if that version has gone meanwhile."""
        self.serving.page_copied(copy, payload)
        self._advance()
        return self.out.take()

    def folded(
        self, fold: do.Fold, squares: do.BlockNorms, payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """A part was added to an extent's total; `payload` is the new total."""
        self.gathering.folded(fold, squares, payload, payload_bytes)
        self._advance()
        return self.out.take()

    def updated(
        self, update: do.Update, squares: tuple[float, ...], weights: Payload | None,
        *, in_place: int = 0,
    ) -> list[Action]:  # fmt: skip
        """A page has its new values; `weights` are there if `update.publish` asked for them."""
        if self.updates.updated(update, squares) and weights is not None:
            self.serving.publish(update, weights, in_place=in_place)
        self.out.drop(weights)
        self._advance()
        return self.out.take()

    def previewed(
        self, update: do.Update, weights: Payload | None, *, in_place: int = 0
    ) -> list[Action]:
        """`weights` are those that an update will make."""
        if self.updates.previewed(update) and weights is not None:
            self.serving.publish(update, weights, in_place=in_place)
        self.out.drop(weights)
        self._advance()
        return self.out.take()

    def written(self, update: do.Update) -> list[Action]:
        """The page's new values are on its other side."""
        self.updates.written(update)
        self._advance()
        return self.out.take()

    def weights_read(
        self, read: do.ReadWeights, payload: Payload | None, *, in_place: int = 0
    ) -> list[Action]:
        """The weights that `read` asked for; None if that version has gone meanwhile.

        `in_place`: the payload lies at one of so many places of its own in shared memory.
        """
        self.serving.weights_read(read, payload, in_place=in_place)
        self._advance()
        return self.out.take()

    def piece_kept(self, piece: do.KeepPiece) -> list[Action]:
        """A piece that a rank attached to a step is put aside."""
        self.attachments.piece_kept(piece)
        self._advance()
        return self.out.take()

    def prepared(self, prepare: do.Prepare, digests: bytes = b"") -> list[Action]:
        """A version is durable here, not yet announced; `digests` of its stripes, where other
        nodes hold them too."""
        self.state.was_prepared(prepare)
        self._open_attempt(self.joint.prepared(prepare.version, digests))
        self._advance()
        return self.out.take()

    def decided(self, decide: do.Decide) -> list[Action]:
        """The step is decided: announce it and go on with the next."""
        if self.children.loaded:  # version 0, which makes it so, is the end of no step
            self.steps.close()
        self.state.was_decided()
        self._open_attempt(self.joint.waiting())
        self._recount()
        self.serving.was_decided()
        self._receive_early()
        self._advance()
        return self.out.take()

    def _receive_early(self) -> None:
        for peer, m, payload, payload_bytes in self.early.take():
            is_of_attempt = m.attempt == self.out.attempt
            if not is_of_attempt or self.children.members.of(peer, m.incarnation) is None:
                self.out.ignore(m, payload)  # its sender has connected again, and repeats it
            else:
                self._act_on(self._from_child[type(m)](peer, m, payload, payload_bytes))

    # ---------------------------------------------------------------------- readers

    def pinned(self, reader: int, version: int, facts: bytes) -> list[Action]:
        """A version is pinned for a reader."""
        self.readers.pinned(reader, version, facts)
        return self.out.take()

    def pin_failed(self, reader: int, text: str) -> list[Action]:
        """No version can be pinned for a reader."""
        self.readers.refused(reader, text)
        return self.out.take()

    def field_read(
        self, read: do.ReadField, payload: Payload | None, text: str = ""
    ) -> list[Action]:
        """Handle the result of a read; None: it failed, and `text` is the reason."""
        self.readers.field_read(read, payload, text)
        return self.out.take()

    # ---------------------------------------------------------------------- time

    def tick(self, now_ns: int) -> list[Action]:
        """Repeat what is due; forget readers that send nothing any more."""
        preview_ns = self._preview_ns
        self.out.now_ns = now_ns
        if preview_ns is not None and preview_ns <= now_ns:
            self._advance()
        if isinstance(self.joint, Joint):
            self.joint.tick()
        self.readers.tick(now_ns)
        return self.out.take()

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        joint_ns = self.joint.next_tick_ns() if isinstance(self.joint, Joint) else None
        return earliest(joint_ns, self.readers.next_tick_ns(), self._preview_ns)

    @property
    def _preview_ns(self) -> int | None:
        """When weights are made that a step lacks pieces for; None if that may be now, or never."""
        step = self.steps.open
        if step is None or not self.steps.lacks_pieces:
            return None
        due_ns = step.judged_ns + PREVIEW_NS
        return due_ns if due_ns > self.out.now_ns else None

    # ---------------------------------------------------------------------- the course of a step

    def _advance(self) -> None:
        """Do what has become possible: measure, discard, start updates, prepare. In this order: a
        verdict makes pages ready, and voids what streamed before anything of it is updated."""
        if isinstance(self.joint, Joint) and self.joint.awaits_filling:
            if self._is_idle:
                self.joint.begin_filling()
            return
        step, state = self.steps.open, self.state
        if step is not None and not step.is_stated and step.is_measured(self.shard.trainable):
            self._measure(step)
        # What was begun under an older attempt may still write a page: that is discarded too.
        if (
            state.must_discard
            and not self.updates.under_way
            and not self.first_weights.under_way_count
        ):
            state.discard()
            self.first_weights.start()
        if step is None or step.preparing:
            return
        if not state.must_discard:
            if not self.steps.lacks_pieces:
                self.updates.start(step)
            elif self.out.now_ns >= step.judged_ns + PREVIEW_NS:
                self.updates.preview(step)
        if step.verdict is None or self.updates.under_way or state.must_discard:
            return  # a page is still to be written, or one written is void
        is_complete = not step.is_applied or len(step.written) == len(self.shard.trainable)
        is_here = self.filling is None or self.filling.has_held
        is_complete = is_complete and step.parts is not None and is_here
        keeps = step.keeps and 0 in self.shard.share.stripes  # its owners keep it for all
        if is_complete and (not keeps or step.has_kept):
            step.preparing = True
            kept_attempt = step.attempt if keeps else None
            state.prepare(step.number + 1, step.verdict, step.hyper, kept_attempt)

    def _measure(self, step: Step) -> None:
        """All sums of this node are complete and measured."""
        step.is_stated = True
        squares = [step.squares(extents) for extents in self.shard.by_stripe]
        judgement = self.joint.measured(step.number, squares)
        if judgement is not None:
            self._judge(step, judgement)

    def _judge(self, step: Step, found: Judgement) -> None:
        """verdict(t): every sum complete, measured and finite; or the step is skipped."""
        out, outcomes, norms = self.out, self.children.outcomes, found.norms
        if not found.applied:
            outcomes.skipped_attempt = out.attempt
            self.state.raise_attempt(found.attempt)
        was_provisional = step.is_provisional
        verdict = out.stamped(wire.Verdict, step=step.number, applied=found.applied, norms=norms)
        step.verdict = outcomes.verdict = verdict
        step.judged_ns = out.now_ns
        if self._node.is_alone:
            self.children.send_all(verdict)
        out.note("node.verdict", level="DEBUG", step=step.number, applied=found.applied)
        if not found.applied:
            outcomes.skip = verdict
            step.ready.clear()
            self.serving.was_skipped()
            self._note_skipped(step, norms[0])
        elif was_provisional:
            self.updates.judged(step)
        elif not self.shard.is_streaming:
            for extent in step.forward_order(self.shard.trainable):
                self.gathering.make_ready(step, extent)

    def _note_skipped(self, step: Step, norm: float) -> None:
        """Report a skipped step; as a warning the first and then every tenth whose gradient is not
        finite here: not those that the script left out, and those of other nodes."""
        outcomes, extent = self.children.outcomes, step.not_finite(self.shard.trainable)
        if extent is None:
            self.out.note("node.skipped", step=step.number, grad_norm=norm)
            return
        outcomes.skips_count += 1
        self.out.note(
            "node.skipped", level="DEBUG" if outcomes.skips_count % 10 != 1 else "WARNING",
            step=step.number, grad_norm=norm, unit=self.shard.unit_of(extent),
            count=outcomes.skips_count,
        )  # fmt: skip

    # ---------------------------------------------------------------------- attempts

    def _request_abort(self, request: AbortRequest) -> None:
        """Give the attempt up as soon as that is allowed."""
        if self.joint.request_abort(request):
            self._abort(request.text)
            self._advance()

    def _count_ranks(self, present: int, roll: tuple[int, int]) -> None:
        self.counted.report(present, roll)
        self._recount()

    def _recount(self) -> None:
        """Other ranks count from the next attempt on, if others are present now."""
        change = self.counted.change() if self.children.loaded else None
        if change is not None:
            is_lost = self.steps.lacks_pieces_of(change.lost)
            self._request_abort(AbortRequest(change.text, is_lost))

    def _open_attempt(self, found: AbortRequest | wire.Adopt | None) -> None:
        """The store has time for what had to wait."""
        if isinstance(found, AbortRequest):
            self._abort(found.text)
        elif found is not None:
            self._take_over(found)

    def _abort(self, text: str) -> None:
        """At a single node: give the attempt up, and open the next."""
        members = self.children.members
        if members.active != self.counted.wanted:
            members.active = self.counted.wanted
            self.out.epoch += 1
        self.state.raise_attempt(self.out.attempt + 1)
        self._forget(text)
        self.children.send_all(self.children.abort(text))

    def _take_over(self, m: wire.Adopt) -> None:
        """At one of several: an attempt that the switch announced counts."""
        joint = self.joint
        assert isinstance(joint, Joint)
        self.children.members.active = m.contributors
        level = "WARNING" if joint.is_enlisted else "INFO"
        self.state.raise_attempt(m.attempt, joint.taken_over(m))
        self._forget(m.text, level)
        joint.welcome()
        self._advance()

    def _forget(self, text: str, level: str = "WARNING") -> None:
        """A new attempt: forget all that came in under the older one."""
        for part in self._with_attempt:
            part.forget()
        step, attempt = self.out.step, self.out.attempt
        self.out.note("node.abort", level=level, step=step, attempt=attempt, text=text)

    # ---------------------------------------------------------------------- questions

    @property
    def finished(self) -> bool:
        """The child has left and nothing is under way."""
        if not self.children.members.all_left:
            return False
        # A step whose Commit is in is still to be decided, though no page is under way.
        return not (
            self.updates.under_way or self.steps.has_commit or self.first_weights.is_loading
        )

    @property
    def _is_idle(self) -> bool:
        """True if nothing is under way to the store, or from it."""
        return not (
            self.state.is_sealing or self.updates.under_way or self.serving.is_reading
            or self.first_weights.under_way_count
            or (self.filling is not None and self.filling.is_writing)
        )  # fmt: skip

    def is_member(self, peer: str) -> bool:
        """True if a connection is that of a child that has joined."""
        return self.children.members.member_at(peer) is not None

    def name_of(self, peer: str) -> str:
        """The name of a connection, as text."""
        return self.children.members.name_of(peer)

    def waits_for(self) -> str:
        """The next event that the node waits for, as text."""
        members, number = self.children.members, self.out.step
        if not members.complete:
            return f"Hello of ranks {ranks_text([members.ranks])}"
        if not self.children.loaded:
            missing = self.first_weights.missing_count
            return f"initial weights of {missing} chunks from rank 0"
        step = self.steps.open
        what = "the first gradient" if step is None else step.waits_for(self.shard.trainable)
        return f"step {number}: {what}"

    def counts(self) -> dict[str, int]:
        """Counters and current sizes."""
        return {
            "step_now": self.out.step,
            "attempt_now": self.out.attempt,
            "repeated_count": self.joint.repeated_count,
            "duplicates_count": self.duplicates.total(),
            "spilled_count": self.budget.spilled_count,
            "owed_count": self.budget.owed_count,
            "redone_count": self.updates.redone_count,
            "sum_bytes_now": self.budget.bytes_used,
            "sum_bytes_limit": self.budget.bytes_max,
            "updates_now": len(self.updates.under_way),
        }
