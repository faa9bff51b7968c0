"""The node as a member of its job: the store, the child, initial weights.

What a first reader may skip: `core.py` shows the course of a step.

    Hello, no store    OpenStore -> store_opened: Welcome | store_refused: Refuse
    Hello, a store     Welcome; another job than the store's: Refuse
    Load               LoadPage -> page_loaded, Received; all pages: version 0 is prepared

Which attempt counts, and what the nodes decide together: `joint.py`. Pure.
"""

from __future__ import annotations

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.base.limits import TEXT_CHARS_MAX
from luwu.base.tree import ranges_text, ranks_of
from luwu.layout import COUNT_BYTES, Layout
from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.protocol.members import KnowsMoreError, RefusedError, ranks_text
from luwu.protocol.parent import Parent
from luwu.protocol.push_form import PushForm
from luwu.wire import messages as wire
from luwu.wire.description import Description, differences, parse_description
from luwu.wire.kinds import Role, Verb
from switch_emu.node.core.actions import (
    Decide,
    Discard,
    Fold,
    GiveUp,
    Inspect,
    KeepPiece,
    LoadPage,
    NodeLimits,
    NodePlace,
    OpenStore,
    PinVersion,
    Prepare,
    PreparedVersion,
    ReadField,
    ReadWeights,
    RecordAttempt,
    Spill,
    StoreFacts,
    Unpin,
    Update,
)
from switch_emu.node.core.step import Step

OLDER_STATE_CODE = "E508"
_NOT_BELIEVED = (
    "you say that the state lacks steps, in the name of a switch whose own connection is alive and "
    "that knows of none: not believed. If this is a switch that was started again, start it once "
    "more when the former one has ended; if it is a stranger, keys (luwu keys) keep it out"
)

Action = (
    Send | Drop | Note | OpenStore | LoadPage | RecordAttempt | Discard | Spill | Fold | Update
    | Inspect | ReadWeights | Prepare | Decide | KeepPiece | PinVersion | ReadField | Unpin
    | GiveUp
)  # fmt: skip


class NodeMember(Parent):
    """See the module. Subclasses extend `_forget` with what they hold of an attempt."""

    def __init__(
        self, job: int, incarnation: int, ranks: int, place: NodePlace, limits: NodeLimits
    ) -> None:
        super().__init__(
            job=job, role=Role.NODE, rank=place.number, incarnation=incarnation, children=[ranks]
        )
        self._limits, self._redoes = limits, limits.redoes
        self._has_welcomed = False
        """A child; before that, none can know of this opening of the store."""
        self._redone_to = 0
        """Steps before this were announced once; the operator lets the job make them again."""
        self._job, self._place = job, place
        self._now_ns = 0
        self.groups: tuple[int, ...] = ()
        """Bitmaps of the ranks that each switch of a tree sums, the smaller ones first."""
        self._hello: tuple[str, wire.Hello, bytes] | None = None
        """A child that waits for the store to be opened, and for node 0 to know us."""
        self._description: Description | None = None
        self._description_bytes = b""
        self._form: PushForm | None = None
        """What pushes must look like."""
        self.world_size = ranks.bit_count()
        self.aggregator: Aggregator = Float32(self.world_size)
        """The job's, known from its description."""
        self._trainable: tuple[int, ...] = ()
        """Indices of the chunks that are updated, of those this node owns."""
        self._chunks_count = 0
        """Chunks that this node owns."""
        self._loading: set[int] = set()
        self._pages_loaded: set[int] = set()
        self._loads_count = 0
        """Pages under way to the store, of any attempt."""
        self._held_loads: list[LoadPage] = []
        """They wait until pages of an older attempt are discarded."""
        self._steps: dict[int, Step] = {}
        """Undecided steps of which anything is known: the next, and the one after it."""
        self._prepared: PreparedVersion | None = None
        self._is_sealing = False
        """`Prepare` or `Decide` is under way; nothing else may be asked of the store."""
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

    @property
    def _norm_type(self) -> float:
        assert self._description is not None
        return self._description.norm_type

    def _settle(self) -> None:
        """Do what has become possible."""
        raise NotImplementedError

    def _forget(self) -> None:
        """A new attempt: forget all that came in under the older one."""
        self._steps.clear()
        self._prepared = None
        self._outcomes.undo(self._step)
        if not self._loaded:
            self._loading.clear()
            self._pages_loaded.clear()
        for load in self._held_loads:
            self._drop(load.payload)
        self._held_loads.clear()

    @property
    def _is_enlisted(self) -> bool:
        """Node 0 knows us, or we are node 0: we know which attempt counts."""
        raise NotImplementedError

    def _request_abort(self, text: str) -> None:
        """Give the attempt up as soon as that is allowed."""
        raise NotImplementedError

    def _is_heard(self, present: int, roll: tuple[int, int]) -> None:
        """The child says which ranks can be heard, and when it said so."""
        raise NotImplementedError

    def _owns(self, chunk: int) -> bool:
        return chunk < len(self._layout.chunks) and self._layout.owner(chunk) == self._place.number

    # ---------------------------------------------------------------------- the store

    def store_opened(self, facts: StoreFacts) -> list[Action]:
        """The store is open: at the start, or because `OpenStore` asked for it."""
        self._description_bytes = facts.description
        self._description = parse_description(facts.description)
        self.aggregator = make_aggregator(self._description.aggregate, self.world_size)
        self._form = PushForm(self._layout, self.aggregator)
        owned = [chunk for chunk in self._layout.chunks if self._owns(chunk.index)]
        self._chunks_count = len(owned)
        self._trainable = tuple(chunk.index for chunk in owned if chunk.trainable)
        self._prepared = facts.prepared
        self._generation, self._attempt = facts.generation, facts.attempt
        self._epoch = facts.epoch if facts.job == self._job else facts.epoch + 1
        self._step, self._loaded = facts.version or 0, facts.version is not None
        if self._step > 0:
            self._outcomes.decided = self._ours(
                wire.Decided, step=self._step - 1, applied=facts.applied, grad_norm=facts.grad_norm
            )
        self._join_held()
        return self._take()

    def _join_held(self) -> None:
        """Let a child in that had to wait."""
        if self._hello is not None and self._is_enlisted:
            (peer, hello, description), self._hello = self._hello, None
            self._join(peer, hello, description)

    def store_refused(self, text: str) -> list[Action]:
        """No store can be made for this job."""
        if self._hello is not None:
            (peer, _, _), self._hello = self._hello, None
            self._tell(peer, self._ours(wire.Refuse, text=text[:TEXT_CHARS_MAX]))
        return self._take()

    # ---------------------------------------------------------------------- the child

    def _hello_came(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        knows_more = hello.step > max(self._step, self._redone_to)
        if knows_more and self._members.is_taken(peer, hello):
            self._refuse_child(peer, RefusedError(_NOT_BELIEVED))
            return
        if self._description is None:
            try:
                self._members.check(hello, description)
            except RefusedError as exc:
                self._refuse_child(peer, exc)
                return
            if hello.step > 0:  # make no new state in the place of one that is missing
                self._refuse_to_go_back(peer, hello)
                return
        if self._description is None and self._hello is None:
            self._actions.append(OpenStore(description))
        self._hello = (peer, hello, description)
        if self._description is not None:
            self._join_held()

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
        is_older = hello.step > max(self._step, self._redone_to)
        if is_older and not (self._redoes and self._loaded):
            self._refuse_to_go_back(peer, hello)
            return
        if is_older:
            self._redone_to = hello.step
        is_later = hello.generation > 0 and (
            (not self._has_welcomed and hello.generation >= self._generation)
            or (hello.generation != self._generation and hello.attempt >= self._attempt)
        )  # fmt: skip
        if (is_older or is_later) and self._place.number == 0:
            self._overtake(hello, is_older=is_older)
        self._has_welcomed = True
        if replaced:
            self._request_abort("the switch was started again")
        self._tell(peer, self._welcome(self._limits.push_window_bytes))
        self._is_heard(hello.present, (hello.incarnation, hello.roll))

    def _refuse_to_go_back(self, peer: str, hello: wire.Hello) -> None:
        """The child was told of decided steps that the state does not have: end, and say so."""
        error = KnowsMoreError(self._step, hello.step)
        self._refuse_child(peer, error)
        self._actions.append(GiveUp(str(error), code=OLDER_STATE_CODE))

    def _overtake(self, hello: wire.Hello, *, is_older: bool) -> None:
        """Go beyond the attempt and the opening of the store that the child knows, if the state is
        an older copy: else what was said then could be taken for what is said now.

        `is_older`: it lacks steps too, and the operator lets the job make them again.
        """
        raise NotImplementedError

    # ---------------------------------------------------------------------- initial weights

    def _load(self, m: wire.Load, payload: Payload, payload_bytes: int) -> None:
        if m.chunk in self._pages_loaded or self._loaded:
            self._tell_loaded(m.chunk)
            self._drop(payload)
        elif m.chunk in self._loading or not self._owns(m.chunk):
            self._drop(payload)
        elif payload_bytes not in self._load_sizes(m.chunk):
            self._note("node.misfit", level="WARNING", chunk=m.chunk, bytes=payload_bytes)
            self._drop(payload)
        else:
            self._loading.add(m.chunk)
            self._held_loads.append(LoadPage(m.chunk, self._attempt, payload))
            self._start_loads()

    def _start_loads(self) -> None:
        if not self._discard:
            self._loads_count += len(self._held_loads)
            self._actions.extend(self._held_loads)
            self._held_loads.clear()

    def _load_sizes(self, chunk: int) -> tuple[int, ...]:
        """Bytes of initial weights; or of weights, state fields and the counts of updates."""
        assert self._description is not None
        place = self._layout.chunks[chunk]
        fields_count = 1 + len(self._description.state_fields)
        whole = fields_count * place.sum_bytes + COUNT_BYTES * self._layout.segments_count(chunk)
        return (place.sum_bytes, whole) if place.trainable else (place.sum_bytes,)

    def page_loaded(self, load: LoadPage) -> list[Action]:
        """Initial weights are in their page; when all are, version 0 is decided."""
        self._loads_count -= 1
        if load.attempt == self._attempt:
            self._pages_loaded.add(load.chunk)
            self._tell_loaded(load.chunk)
            if len(self._pages_loaded) == self._chunks_count:
                self._prepare(0)
        else:
            self._settle()
        return self._take()

    @property
    def _is_loading(self) -> bool:
        """Whether initial weights are on their way to their pages, or all there and not decided."""
        if self._loaded or not self._loading:
            return False
        is_whole = len(self._pages_loaded) == self._chunks_count
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
            contributors=self._members.active, hyper=hyper or b"",
            applied=verdict is None or verdict.applied,
            grad_norm=0.0 if verdict is None else verdict.grad_norm,
            kept_attempt=kept_attempt,
        )  # fmt: skip
        self._actions.append(prepare)
        self._is_sealing = True

    def _announce_decided(self, version: PreparedVersion) -> None:
        number, applied, norm = version.version - 1, version.applied, version.grad_norm
        decided = self._ours(wire.Decided, step=number, applied=applied, grad_norm=norm)
        self._outcomes.decided, self._outcomes.verdict = decided, None
        self._tell_all(decided)
        self._note(
            "node.step", step=number, applied=applied, grad_norm=norm,
            ranks=ranges_text(ranks_of(version.contributors)),
        )  # fmt: skip

    def _raise_attempt(self, attempt: int) -> None:
        """Make a new attempt the one that counts; what was written under the older is void."""
        self._attempt = attempt
        self._discard = True
        self._actions.append(RecordAttempt(attempt))

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
            missing = self._chunks_count - len(self._pages_loaded)
            return f"initial weights of {missing} chunks from rank 0"
        step = self._steps.get(self._step)
        what = "the first gradient" if step is None else step.waits_for(self._trainable)
        return f"step {self._step}: {what}"
