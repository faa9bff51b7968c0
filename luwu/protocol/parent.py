"""What a switch and a node have in common: children, and answers to those who are behind.

    an unknown child               Rejoin
    a child of an older attempt    Abort; or how its step came out, if it asks for that; or the
                                   verdict that skipped a step, if that opened the new attempt
    a child that cannot be one     Refuse

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.protocol.members import KnowsMoreError, Members, RefusedError
from luwu.protocol.outcomes import Outcomes
from luwu.protocol.speaker import Speaker
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb


class Parent(Speaker):
    """A member that has children."""

    def __init__(
        self, *, job: int, role: Role, rank: int, incarnation: int, children: Sequence[int]
    ) -> None:
        super().__init__(job=job, role=role, rank=rank, incarnation=incarnation)
        self._name = role.name.lower()
        self._members = Members(job=job, children=children)
        self._loaded = False
        """The state has weights."""
        self._redoes = False
        """The operator lets the job make steps again that were decided and are lost."""
        self._outcomes = Outcomes()

    def _tell_all(self, message: wire.Message, payload: object | None = None) -> None:
        self._announce(self._members.peers, message, payload)

    def _receipt(self, m: wire.Message, verb: Verb, contributors: int = 0) -> wire.Received:
        chunk, part = (m.chunk, m.part) if isinstance(m, wire.DataMessage) else (0, 0)
        return self._ours(
            wire.Received, step=m.step, chunk=chunk, part=part, verb=verb, contributors=contributors
        )

    def _welcome(self, push_window_bytes: int) -> wire.Welcome:
        skip = self._outcomes.skip_into(self._attempt)
        return self._ours(
            wire.Welcome, loaded=self._loaded, push_window_bytes=push_window_bytes,
            contributors=self._members.active,
            began_with_skip=skip is not None,
            skipped_step=0 if skip is None else skip.step,
            grad_norm=0.0 if skip is None else skip.grad_norm,
            redoes=self._redoes,
        )  # fmt: skip

    def _abort_child(self, text: str) -> wire.Abort:
        return self._ours(
            wire.Abort,
            loaded=self._loaded,
            contributors=self._members.active,
            text=text[:TEXT_CHARS_MAX],
            redoes=self._redoes,
        )

    def _refuse_child(self, peer: str, error: RefusedError) -> None:
        self._note(f"{self._name}.refused", level="WARNING", peer=peer, text=str(error))
        is_older = isinstance(error, KnowsMoreError)
        self._tell(peer, self._ours(wire.Refuse, text=str(error), is_older=is_older))

    def _answer_stale(self, peer: str, m: wire.Message) -> None:
        """Tell a child what it does not know yet: the attempt that counts."""
        skip = self._outcomes.skip
        if m.attempt == self._outcomes.skipped_attempt and skip is not None:
            self._tell(peer, skip)
        elif not (isinstance(m, wire.Commit) and self._answer_commit(peer, m.step)):
            self._tell(
                peer, self._abort_child(f"attempt {m.attempt} is over, {self._attempt} counts")
            )

    def _answer_commit(self, peer: str, step: int) -> bool:
        """Say again how a step came out; False if it is not known yet."""
        known = self._outcomes.of(step)
        for message in known:
            self._tell(peer, message)
        return bool(known)
