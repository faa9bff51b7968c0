"""Messages of a step, counted: the cores play a small job without time, and say what they send.

An *end* is a message that a process sends or receives. So many workers train a few extents through
a switch and a node; of the step that is counted each extent is pulled for forward and backward and
pushed once, and what is sent is put to the request, the pull, the push or the step itself. It is
right for any number of extents where nothing is lost, repeated or handed on raw, as an extent's
messages do not depend on the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from luwu.base.limits import CHUNK_BYTES_STEP
from luwu.layout import SUM_BYTES, Layout, Parameter, Unit
from luwu.nic.core import actions as nic
from luwu.predict.driven.cores import (
    HYPER,
    JOB,
    NEVER,
    OWN,
    SQUARES,
    SWITCH,
    Cores,
    store_facts,
    worker_name,
)
from luwu.predict.driven.driven_switch import sum_of
from luwu.predict.driven.links import Token
from luwu.protocol.actions import PARENT, Drop, Note, Send
from luwu.wire.description import Description
from luwu.wire.hyper import hyper_hash
from luwu.wire.kinds import Verb
from luwu.wire.messages import Message, Pull, Push, Received, Weights
from switch_emu.node.core import actions as do
from switch_emu.switch.core.actions import Sum, SwitchLimits

EXTENTS: Final = 2
STEP: Final = 1
"""The one that is counted: the first has nothing before it."""
STEPS: Final = 3
WORKERS_MAX: Final = 16
"""Played; more of them add what the last of these added."""
ROOM_BYTES: Final = 1 << 40
"""Memory of switch and node: nothing waits for room."""
WORKER, NODE = "worker", "node"
REQUESTED, PULLED, PUSHED, STATED = "request", "pull", "push", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of messages at one process of a role."""

    request: float
    """Per unit and pull: what asks for its extents."""
    pull: float
    """Per extent and pull: its weights."""
    push: float
    """Per extent and push."""
    step: float
    """Per step: hyper-parameters, commit, verdict, decision."""


@cache
def ends_of_step(
    workers: int, update: str, cores: Cores = OWN, extent_chunks: int = 1
) -> dict[str, Ends]:
    """By role: `worker` (one of them), `switch`, `node`. `extent_chunks`: of each extent."""
    if workers <= WORKERS_MAX:
        return _Exchange(workers, update, cores, extent_chunks).ends()
    most = ends_of_step(WORKERS_MAX, update, cores, extent_chunks)
    fewer = ends_of_step(WORKERS_MAX - 1, update, cores, extent_chunks)
    more = workers - WORKERS_MAX

    def further(role: str) -> Ends:
        at, before = most[role], fewer[role]
        return Ends(
            request=at.request + more * (at.request - before.request),
            pull=at.pull + more * (at.pull - before.pull),
            push=at.push + more * (at.push - before.push),
            step=at.step + more * (at.step - before.step),
        )

    return {role: further(role) for role in most}


class _Exchange:
    """Workers, switch and node, and a queue of what is on its way."""

    def __init__(self, workers: int, update: str, cores: Cores, extent_chunks: int) -> None:
        self._update, self._queue = update, deque[Callable[[], None]]()
        elems = EXTENTS * extent_chunks * CHUNK_BYTES_STEP // SUM_BYTES
        layout = Layout(
            parameters=(Parameter(name="p", shape=(elems,)),),
            units=(Unit(name="u", parameters=(0,)),), chunk_bytes=CHUNK_BYTES_STEP,
            extent_chunks=extent_chunks,
        )  # fmt: skip
        assert len(layout.extents) == EXTENTS
        self._layout = layout
        self._description = Description(
            layout=layout, optimizer="adamw", update=update, state_fields=("m", "v")
        )
        self._counts: Counter[tuple[str, str]] = Counter()
        self._done: set[tuple[int, int]] = set()
        ranks = range(workers)
        self._ranks = {worker_name(rank): rank for rank in ranks}
        self._workers = [
            cores.nic(job=JOB, rank=rank, world_size=workers, incarnation=1, retry=NEVER)
            for rank in ranks
        ]
        self._switch = cores.switch(
            job=JOB, incarnation=1, children=[1 << rank for rank in ranks], retry=NEVER,
            limits=SwitchLimits(
                slot_bytes_max=ROOM_BYTES, copies_bytes_max=ROOM_BYTES,
                push_window_bytes=ROOM_BYTES, extent_chunks=extent_chunks,
            ),
        )  # fmt: skip
        self._node = cores.node(
            job=JOB, incarnation=1, ranks=(1 << workers) - 1, retry=NEVER,
            limits=do.NodeLimits(
                sum_bytes_max=ROOM_BYTES, push_window_bytes=ROOM_BYTES,
                extent_chunks=extent_chunks,
            ),
        )  # fmt: skip
        self._do_node(self._node.store_opened(store_facts(self._description)))

    def ends(self) -> dict[str, Ends]:
        """Play some steps; what was counted in one of them."""
        description = self._description
        self._each(
            lambda core: core.join(
                0,
                description.to_bytes(),
                description.hash,
                extent_chunks=description.layout.extent_chunks,
            )
        )
        for step in range(STEPS):
            self._step(step)
        roles = {WORKER: len(self._workers), SWITCH: 1, NODE: 1}
        return {
            role: Ends(
                request=self._counts[role, REQUESTED] / (2 * count),
                pull=self._counts[role, PULLED] / (2 * EXTENTS * count),
                push=self._counts[role, PUSHED] / (EXTENTS * count),
                step=self._counts[role, STATED] / count,
            )
            for role, count in roles.items()
        }

    def _step(self, step: int) -> None:
        """As a training session does it: forward, backward, commit."""
        extents = list(range(EXTENTS))
        handle = 3 * step
        self._each(lambda core: core.pull(0, handle, step, 0, extents))
        self._check(handle)
        if self._update == "streaming":
            self._each(lambda core: core.begin(0, step, hyper_hash(HYPER), HYPER))
        self._each(lambda core: core.pull(0, handle + 1, step, 1, extents))
        self._check(handle + 1)
        self._each(
            lambda core: core.push(
                0, handle + 2, step, 0, self._gradients(), weight=1.0,
                last=self._update == "streaming",
            )
        )  # fmt: skip
        self._each(lambda core: core.commit(0, step, hyper_hash(HYPER), 1, HYPER))
        self._check(handle + 2)

    def _gradients(self) -> list[nic.Gradient]:
        return [
            nic.Gradient(
                index=extent.index, payload=Token(extent.sum_bytes),
                payload_bytes=extent.sum_bytes, dtype="float32",
            )
            for extent in self._layout.extents
        ]  # fmt: skip

    def _check(self, handle: int) -> None:
        for rank in range(len(self._workers)):
            assert (rank, handle) in self._done, f"the node waits for {self._node.waits_for()}"

    # ---------------------------------------------------------------------- the cores

    def _each(self, act: Callable[[Any], Sequence[Any]]) -> None:
        """All workers do something, and everything that follows from it happens."""
        for rank, core in enumerate(self._workers):
            self._do_worker(rank, act(core))
        while self._queue:
            self._queue.popleft()()

    def _send(self, sender: str, peers: Sequence[str], message: Message, payload: Any) -> None:
        """Count it, and put it on its way to each peer."""
        for peer in peers:
            token = payload.copy() if isinstance(payload, Token) else payload
            nbytes = token.nbytes if isinstance(token, Token) else 0
            receiver = {PARENT: NODE if sender == SWITCH else SWITCH}.get(peer, peer)
            for end in (sender, receiver):
                role = end if end in (SWITCH, NODE) else WORKER
                if message.step == STEP:
                    self._counts[role, _kind(message)] += 1
            self._queue.append(partial(self._arrive, sender, receiver, message, token, nbytes))

    def _arrive(
        self, sender: str, receiver: str, message: Message, token: Any, nbytes: int
    ) -> None:
        if receiver == NODE:
            self._do_node(self._node.received(0, SWITCH, message, token, nbytes))
        elif receiver == SWITCH:
            peer = PARENT if sender == NODE else sender
            self._do_switch(self._switch.received(0, peer, message, token, nbytes))
        else:
            rank = self._ranks[receiver]
            self._do_worker(rank, self._workers[rank].received(0, message, token, nbytes))

    def _do_worker(self, rank: int, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(_, message, payload):
                    self._send(worker_name(rank), (PARENT,), message, payload)
                case nic.Done(handle):
                    self._done.add((rank, handle))
                case nic.Refused():
                    raise AssertionError(f"a worker was rejected: {action}")
                case _:
                    pass

    def _do_switch(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    self._send(SWITCH, peers, message, payload)
                case Sum():
                    total = sum_of(action)
                    self._do_switch(self._switch.summed(0, action, total, total.nbytes))
                case _:
                    pass

    def _do_node(self, actions: Sequence[Any]) -> None:
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    self._send(NODE, peers, message, payload)
                case Drop() | Note() | do.Spill():
                    pass
                case _:
                    self._queue.append(partial(self._work, action))

    def _work(self, action: Any) -> None:
        """Carry out the work of the node's pipeline at once."""
        node, weights = self._node, Token(self._layout.extent_bytes)
        match action:
            case do.Update():
                published = weights if action.publish else None
                self._do_node(node.updated(action, SQUARES, published))
                self._do_node(node.written(action))
            case do.Fold():
                self._do_node(node.folded(action, SQUARES, weights, weights.nbytes))
            case do.ReadWeights():
                self._do_node(node.weights_read(action, weights))
            case do.Prepare():
                self._do_node(node.prepared(action))
            case do.Decide():
                self._do_node(node.decided(action))
            case _:
                raise AssertionError(f"nothing goes wrong here, but the core asks for {action}")


def _kind(message: Message) -> str:
    if isinstance(message, Pull):
        return REQUESTED
    if isinstance(message, Weights):
        return PULLED
    is_receipt = isinstance(message, Received) and message.verb is Verb.PUSH
    return PUSHED if is_receipt or isinstance(message, Push) else STATED
