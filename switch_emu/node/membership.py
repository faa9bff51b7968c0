"""The node as a member of its job: the store, the child, initial weights, which attempt counts.

What a first reader may skip: `core.py` shows the course of a step.

    Hello, no store    OpenStore -> store_opened: Welcome | store_refused: Refuse
    Hello, a store     Welcome; another job than the store's: Refuse
    Load               LoadPage -> page_loaded, Received; all pages: version 0 is prepared
    Cancel, restart    a new attempt, recorded before it is said; pages of the older are discarded

Pure.
"""

from __future__ import annotations

from luwu.layout import Layout
from luwu.wire import messages as wire
from luwu.wire.actions import Drop, Note, Payload, Send
from luwu.wire.description import Description, differences, parse_description
from luwu.wire.kinds import Role, Verb
from switch_emu.node.actions import (
    Decide,
    Discard,
    Fold,
    KeepPiece,
    LoadPage,
    NodeLimits,
    OpenStore,
    PinVersion,
    Prepare,
    ReadField,
    ReadWeights,
    RecordAttempt,
    Spill,
    StoreFacts,
    Unpin,
    Update,
)
from switch_emu.node.step import Step
from switch_emu.switch.members import RefusedError, ranks_text
from switch_emu.switch.parent import Parent

UPDATES_BYTES = 8
"""The count of a page's updates: one int64."""

Action = (
    Send | Drop | Note | OpenStore | LoadPage | RecordAttempt | Discard | Spill | Fold | Update
    | ReadWeights | Prepare | Decide | KeepPiece | PinVersion | ReadField | Unpin
)  # fmt: skip


class NodeMember(Parent):
    """See the module. Subclasses extend `_forget` with what they hold of an attempt."""

    def __init__(self, job: int, incarnation: int, ranks: int, rank: int, limits: NodeLimits):
        super().__init__(
            job=job, role=Role.NODE, rank=rank, incarnation=incarnation, children=[ranks]
        )
        self._limits = limits
        self._job = job
        self._hello: tuple[str, wire.Hello] | None = None
        """A child that waits for the store to be opened."""
        self._description: Description | None = None
        self._description_bytes = b""
        self._trainable: tuple[int, ...] = ()
        """Indices of the chunks that are updated."""
        self._loading: set[int] = set()
        self._pages_loaded: set[int] = set()
        self._steps: dict[int, Step] = {}
        """Undecided steps of which anything is known: the next, and the one after it."""
        self._abort_text: str | None = None
        """An abort that waits for the step to be decided."""
        self._discard = False
        """Pages of an older attempt are to be forgotten once no update of it is under way."""

    @property
    def _layout(self) -> Layout:
        assert self._description is not None
        return self._description.layout

    @property
    def _streaming(self) -> bool:
        assert self._description is not None
        return self._description.update == "streaming"

    def _settle(self) -> None:
        """Do what has become possible."""
        raise NotImplementedError

    def _forget(self) -> None:
        """A new attempt: forget all that came in under the older one."""
        self._steps.clear()

    # ---------------------------------------------------------------------- the store

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
            self._outcomes.decided = self._ours(
                wire.Decided, step=self._step - 1, applied=facts.applied, grad_norm=facts.grad_norm
            )
        if self._hello is not None:
            (peer, hello), self._hello = self._hello, None
            self._join(peer, hello, facts.description)
        return self._take()

    def store_refused(self, text: str) -> list[Action]:
        """No store can be made for this job."""
        if self._hello is not None:
            (peer, _), self._hello = self._hello, None
            self._tell(peer, self._ours(wire.Refuse, text=text[:1000]))
        return self._take()

    # ---------------------------------------------------------------------- the child

    def _hello_came(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        if self._description is not None:
            self._join(peer, hello, description)
            return
        if self._hello is None:
            self._actions.append(OpenStore(description))
        self._hello = (peer, hello)

    def _join(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        try:
            if description != self._description_bytes:
                lines = "; ".join(differences(description, self._description_bytes))
                raise RefusedError(
                    f"the state is that of another job: {lines}"[:880]
                    + "; give the right --state, or a new directory"
                )
            replaced = self._members.join(peer, hello, description)
        except RefusedError as exc:
            self._refuse_child(peer, exc)
            return
        if replaced:
            self._request_abort("the switch was started again")
        self._tell(peer, self._welcome(self._limits.push_window_bytes))

    # ---------------------------------------------------------------------- initial weights

    def _load(self, m: wire.Load, payload: Payload, payload_bytes: int) -> None:
        if m.chunk in self._pages_loaded or self._loaded:
            self._tell_loaded(m.chunk)
            self._drop(payload)
        elif m.chunk in self._loading or m.chunk >= len(self._layout.chunks):
            self._drop(payload)
        elif payload_bytes not in self._load_sizes(m.chunk):
            self._note("node.misfit", level="WARNING", chunk=m.chunk, bytes=payload_bytes)
            self._drop(payload)
        else:
            self._loading.add(m.chunk)
            self._actions.append(LoadPage(m.chunk, payload))

    def _load_sizes(self, chunk: int) -> tuple[int, ...]:
        """Bytes of initial weights; or of weights, state fields and the count of updates."""
        assert self._description is not None
        place = self._layout.chunks[chunk]
        fields_count = 1 + len(self._description.state_fields)
        whole = fields_count * place.sum_bytes + UPDATES_BYTES
        return (place.sum_bytes, whole) if place.trainable else (place.sum_bytes,)

    def page_loaded(self, chunk: int) -> list[Action]:
        """Initial weights are in their page; when all are, version 0 is decided."""
        self._pages_loaded.add(chunk)
        self._tell_loaded(chunk)
        if len(self._pages_loaded) == len(self._layout.chunks):
            self._prepare(0)
        return self._take()

    @property
    def _is_loading(self) -> bool:
        """Whether initial weights are on their way to their pages, or all there and not decided."""
        if self._loaded or not self._loading:
            return False
        is_whole = len(self._pages_loaded) == len(self._layout.chunks)
        return is_whole or self._loading != self._pages_loaded

    def _tell_loaded(self, chunk: int) -> None:
        receipt = self._ours(
            wire.Received, step=0, chunk=chunk, part=0, verb=Verb.LOAD, contributors=0
        )
        self._tell_all(receipt)

    def _prepare(
        self, version: int, verdict: wire.Verdict | None = None, hyper: bytes | None = None,
        kept_attempt: int | None = None,
    ) -> None:  # fmt: skip
        """Make a version durable as a whole; version 0, the initial weights, has no verdict."""
        prepare = Prepare(
            version=version, attempt=self._attempt, epoch=self._epoch,
            contributors=self._members.ranks, hyper=hyper or b"",
            applied=verdict is None or verdict.applied,
            grad_norm=0.0 if verdict is None else verdict.grad_norm,
            kept_attempt=kept_attempt,
        )  # fmt: skip
        self._actions.append(prepare)

    def _announce_decided(self, step: Step) -> None:
        assert step.verdict is not None
        applied, norm = step.verdict.applied, step.verdict.grad_norm
        decided = self._ours(wire.Decided, step=step.number, applied=applied, grad_norm=norm)
        self._outcomes.decided, self._outcomes.verdict = decided, None
        self._tell_all(decided)
        self._note("node.step", step=step.number, applied=applied, grad_norm=norm)

    # ---------------------------------------------------------------------- attempts

    def _request_abort(self, text: str) -> None:
        step = self._steps.get(self._step)
        if not self._loaded:
            return  # nothing was pushed yet
        if step is not None and step.is_judged:
            self._abort_text = text
            return
        self._abort(text)
        self._settle()

    def _abort_if_asked(self) -> None:
        """The step is decided that an abort had to wait for."""
        if self._abort_text is not None:
            text, self._abort_text = self._abort_text, None
            self._abort(text)

    def _abort(self, text: str) -> None:
        self._raise_attempt()
        self._forget()
        self._note("node.abort", level="WARNING", step=self._step, attempt=self._attempt, text=text)
        self._tell_all(self._ours(wire.Abort, loaded=self._loaded, text=text[:1000]))

    def _raise_attempt(self) -> None:
        self._attempt += 1
        self._discard = True
        self._actions.append(RecordAttempt(self._attempt))

    # ---------------------------------------------------------------------- for people

    @property
    def next_step(self) -> int:
        """The first undecided step."""
        return self._step

    def waits_for(self) -> str:
        """What must happen next, for people."""
        if not self._members.complete:
            return f"Hello of ranks {ranks_text([self._members.ranks])}"
        if not self._loaded:
            missing = len(self._layout.chunks) - len(self._pages_loaded)
            return f"initial weights of {missing} chunks from rank 0"
        step = self._steps.get(self._step)
        what = "the first gradient" if step is None else step.waits_for(self._trainable)
        return f"step {self._step}: {what}"
