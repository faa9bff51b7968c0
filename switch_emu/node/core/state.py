"""The node's state on disk: the decided version, the one being made durable, and the attempt. Pure.

prepare    Prepare -> prepared    the version could be decided, after a crash too
decide     Decide -> decided      it is decided, and announced
raise_attempt                     RecordAttempt; what was written under the older one is void,
                                  and is discarded once nothing of it is under way
"""

from __future__ import annotations

from luwu.base.tree import ranges_text, ranks_of
from luwu.protocol.children import Children
from luwu.protocol.epoch import Epoch
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.node.core.actions import (
    Decide,
    Discard,
    Prepare,
    PreparedVersion,
    RecordAttempt,
    StoreFacts,
)


class State:
    """Versions and attempts of the open store."""

    def __init__(self, outbox: Outbox, children: Children) -> None:
        self._outbox, self._children = outbox, children
        self.prepared: PreparedVersion | None = None
        self.decided_attempt = 0
        """The attempt under which the decided version was made."""
        self.is_sealing = False
        """`Prepare` or `Decide` is under way; nothing else may be asked of the store."""
        self.must_discard = False
        """Pages of an older attempt are to be forgotten once no update of it is under way."""

    @property
    def version(self) -> int | None:
        """The decided version; None while the initial weights are not complete."""
        return self._outbox.step if self._children.loaded else None

    def opened(self, facts: StoreFacts) -> None:
        """Go on from what is in the open store."""
        outbox = self._outbox
        self.prepared, self.decided_attempt = facts.prepared, facts.decided_attempt
        outbox.generation, outbox.attempt = facts.generation, facts.attempt
        outbox.epoch = facts.epoch if facts.job == outbox.job else facts.epoch + 1
        outbox.step, self._children.loaded = facts.version or 0, facts.version is not None
        if outbox.step > 0:
            self._children.outcomes.decided = outbox.stamped(
                wire.Decided, step=outbox.step - 1, applied=facts.applied, norms=facts.norms
            )

    def prepare(
        self, version: int, verdict: wire.Verdict | None = None, hyper: bytes | None = None,
        kept_attempt: int | None = None,
    ) -> None:  # fmt: skip
        """Make a version durable as a whole; version 0, the initial weights, has no verdict."""
        prepare = Prepare(
            version=version, attempt=self._outbox.attempt, epoch=self._outbox.epoch,
            contributors=self._children.members.active, hyper=hyper or b"",
            applied=verdict is None or verdict.applied,
            norms=(0.0,) if verdict is None else verdict.norms,
            kept_attempt=kept_attempt,
        )  # fmt: skip
        self._outbox.actions.append(prepare)
        self.is_sealing = True

    def was_prepared(self, done: Prepare) -> None:
        """A version is durable, and not yet announced."""
        self.is_sealing = False
        self.prepared = PreparedVersion(
            done.version, done.attempt, done.applied, done.norms, done.contributors
        )

    def has_prepared(self, version: int | None, attempt: int) -> bool:
        """E2: True if this version, as made under this attempt, is prepared."""
        prepared = self.prepared
        return prepared is not None and (prepared.version, prepared.attempt) == (version, attempt)

    def decide(self) -> None:
        """Record that the prepared version is decided."""
        assert self.prepared is not None
        self.is_sealing = True
        self._outbox.actions.append(Decide(self.prepared.version, self.prepared.attempt))

    def was_decided(self) -> None:
        """The prepared version is the decided one: announce it."""
        version, self.prepared, self.is_sealing = self.prepared, None, False
        assert version is not None
        self._children.loaded, self.decided_attempt = True, version.attempt
        if version.version > 0:
            self._announce_decided(version)

    def raise_attempt(self, attempt: int, epoch: Epoch | None = None) -> None:
        """Make a new attempt the one that counts; what was written under the older is void.

        `epoch`: of several nodes, if it is another.
        """
        assert attempt >= self._outbox.attempt, "an attempt is never taken back"
        self._outbox.attempt = attempt
        self.must_discard = True
        self._outbox.actions.append(RecordAttempt(attempt, epoch))

    def discard(self) -> None:
        """Forget all pages of older attempts: nothing of them is under way."""
        self.must_discard = False
        self._outbox.actions.append(Discard(self._outbox.attempt))

    def forget(self) -> None:
        """A new attempt: a version that was prepared under the older one is void."""
        self.prepared = None
        self._children.outcomes.undo(self._outbox.step)

    def _announce_decided(self, version: PreparedVersion) -> None:
        number, applied, norms = version.version - 1, version.applied, version.norms
        decided = self._outbox.stamped(wire.Decided, step=number, applied=applied, norms=norms)
        outcomes = self._children.outcomes
        outcomes.decided, outcomes.verdict = decided, None
        self._children.send_all(decided)
        self._outbox.note(
            "node.step", step=number, applied=applied, grad_norm=norms[0],
            ranks=ranges_text(ranks_of(version.contributors)),
        )  # fmt: skip
