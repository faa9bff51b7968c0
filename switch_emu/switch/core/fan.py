"""Between a switch's core, which has one parent, and K optimizer nodes: one message out to those it
concerns, K answers folded into the one that the core expects.

    what the core says          goes to            what the core hears
    Load, Push, Pull            the chunk's owner  its answer, as it is
    Keep, Cancel, Present       node 0             its answer, as it is
    Hello                       all                Welcome, when all have welcomed us and are at the
                                                   same attempt and step; Refuse of any
    Begin, Leave                all                Received, when it is that of all
    Commit                      all                Verdict and Decided, each when all say it
    anything of an old attempt  all or one         Abort, when all are at the new attempt
    anything                                       Rejoin of any: then all are asked

Node n owns every K-th chunk, from n on. The core thus hears of a new attempt, or of the end of a
step, only when it can go on at every node: nothing it says next has to be said twice. A node that
stays behind while another says the same Abort again may have been started again without the core's
having anything to ask of it: it is greeted, with the core's own Hello.

Readers are refused: the nodes' versions would have to be pinned as one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb

NO_READERS = (
    "a job with several optimizer nodes cannot be read while it runs; wait for its end, and "
    "export its state with `luwu export`, or train with --optimizer-nodes 1"
)

Position = tuple[int, int, int]
"""(generation, attempt, first undecided step): where a node is; it never goes back."""


@dataclass(slots=True)
class _Heard:
    """What one node said last."""

    position: Position = (-1, -1, -1)
    welcome: wire.Welcome | None = None
    """Of the present start of the node, and the present connection."""
    abort: wire.Abort | None = None
    verdict: wire.Verdict | None = None
    decided: wire.Decided | None = None

    def moved(self, generation: int, attempt: int, step: int) -> bool:
        """The node says where it is; False if that is an old word."""
        said = (generation, attempt, step)
        if said[:2] < self.position[:2]:
            return False
        self.position = max(self.position, said)
        return True


class Fan:
    """See the module."""

    def __init__(self, node_count: int) -> None:
        self._all = tuple(range(node_count))
        self._heard = [_Heard() for _ in self._all]
        self._received: dict[tuple[int, int, Verb, int], set[int]] = {}
        """(generation, attempt, verb, step) -> nodes that have it."""
        self._hello: tuple[wire.Hello, object] | None = None
        """The core's last, and its payload."""
        self._behind: tuple[int, ...] = ()
        self._greets = False
        """The core has said Hello and was not welcomed yet."""
        self._told = (-1, -1)
        """(generation, attempt) that the core knows."""
        self._told_step = 0
        """The first undecided step that it knows."""
        self._judged_step = -1
        """Of the last verdict that the core was told, unless its attempt was given up since."""

    # ---------------------------------------------------------------------- upwards

    def stamped(self, m: wire.Message) -> wire.Message:
        """What the core says; its Hello with the latest attempt that any node has said, which the
        core may not have been told yet. The step is its own: a node may have to follow node 0."""
        if not isinstance(m, wire.Hello):
            return m
        said = (heard.position[:2] for heard in self._heard)
        generation, attempt = max((m.generation, m.attempt), *said)
        return replace(m, generation=generation, attempt=attempt)

    def up(self, m: wire.Message, payload: object = None) -> tuple[int, ...]:
        """The nodes that must hear what the core says."""
        if isinstance(m, wire.Hello):
            self._greets, self._hello = True, (m, payload)
        if isinstance(m, wire.Present) and self._hello is not None:
            hello, description = self._hello
            self._hello = (replace(hello, present=m.contributors, roll=m.roll), description)
        if isinstance(m, wire.Keep | wire.Cancel | wire.Present):
            return (0,)
        if isinstance(m, wire.DataMessage):
            return (m.chunk % len(self._all),)
        return self._all

    def to_greet(self) -> list[tuple[int, wire.Message, object]]:
        """Hello to the nodes to which it must be said now: (node, message, payload)."""
        behind, self._behind = self._behind, ()
        if self._hello is None or not behind:
            return []
        hello = self.stamped(self._hello[0])
        return [(node, hello, self._hello[1]) for node in behind]

    @staticmethod
    def refusal(m: wire.ReaderRequest) -> wire.Gone:
        """The answer to any reader."""
        return wire.Gone(
            job=m.job, epoch=m.epoch, step=m.step, attempt=m.attempt, role=m.role, rank=m.rank,
            incarnation=m.incarnation, generation=m.generation, reader=m.reader,
            text=NO_READERS[:TEXT_CHARS_MAX],
        )  # fmt: skip

    def reconnected(self, node: int) -> None:
        """A connection is there, or there again; the core will say Hello."""
        self._heard[node].welcome = None

    # ---------------------------------------------------------------------- downwards

    def down(self, node: int, m: wire.Message) -> list[wire.Message]:
        """What the core is to hear now that a node has said this."""
        heard = self._heard[node]
        if isinstance(m, wire.Welcome):
            if heard.moved(m.generation, m.attempt, m.step):
                heard.welcome = m
            return self._agreed()
        if isinstance(m, wire.Abort):
            before = heard.position
            if heard.moved(m.generation, m.attempt, m.step):
                heard.abort = m
            if heard.position == before:
                self._look_behind(before)
            return self._agreed()
        if isinstance(m, wire.Verdict):
            if heard.moved(m.generation, m.attempt, m.step):
                heard.verdict = m
            return [*self._judged(m), *self._agreed()]
        if isinstance(m, wire.Decided):
            if heard.moved(m.generation, m.attempt, m.step + 1):
                heard.decided = m
            return [*self._decided(m), *self._agreed()]
        if isinstance(m, wire.Received) and m.verb in (Verb.BEGIN, Verb.LEAVE):
            return self._all_received(node, m)
        if isinstance(m, wire.Rejoin):
            heard.welcome = None
        return [m]

    def _look_behind(self, position: Position) -> None:
        heard = enumerate(self._heard)
        self._behind = tuple(node for node, h in heard if h.position[:2] < position[:2])

    def _judged(self, m: wire.Verdict) -> list[wire.Message]:
        said = [heard.verdict for heard in self._heard]
        same = (m.generation, m.attempt, m.step)
        if any(v is None or (v.generation, v.attempt, v.step) != same for v in said):
            return []
        self._skipped(m)
        self._judged_step = m.step
        return [m]

    def _decided(self, m: wire.Decided) -> list[wire.Message]:
        said = [heard.decided for heard in self._heard]
        if any(d is None or d.step != m.step for d in said):
            return []
        newest = max((d for d in said if d is not None), key=lambda d: (d.generation, d.attempt))
        if m.step != self._judged_step and m.step >= self._told_step:
            # Else the core knows how the step came out, and takes no attempt from it: what is said
            # again is stamped with the attempt of now, which may have come by an abort since.
            self._skipped(newest)
        self._told_step = max(self._told_step, m.step + 1)
        for key in [key for key in self._received if key[3] < m.step]:
            del self._received[key]
        return [newest]

    def _skipped(self, m: wire.Verdict | wire.Decided) -> None:
        """A step that is skipped brings its new attempt along."""
        if not m.applied:
            self._told = max(self._told, (m.generation, m.attempt))

    def _skip_into(self, generation: int, attempt: int) -> wire.Verdict | None:
        """The verdict that opened an attempt, if a node said one."""
        for heard in self._heard:
            v = heard.verdict
            if (
                v is not None
                and not v.applied
                and (v.generation, v.attempt) == (generation, attempt)
            ):
                return v
        return None

    def _all_received(self, node: int, m: wire.Received) -> list[wire.Message]:
        key = (m.generation, m.attempt, m.verb, m.step)
        nodes = self._received.setdefault(key, set())
        nodes.add(node)
        if len(nodes) < len(self._all):
            return []
        del self._received[key]
        return [m]

    def _agreed(self) -> list[wire.Message]:
        """A Welcome or an Abort, if all nodes are now where the core does not know them to be."""
        position = self._heard[0].position
        if any(heard.position != position for heard in self._heard):
            return []
        generation, attempt, step = position
        if self._greets:
            welcomes = [heard.welcome for heard in self._heard if heard.welcome is not None]
            if len(welcomes) < len(self._all):
                return []
            if self._told != (generation, attempt):  # else only the connection was lost
                self._judged_step = -1
            self._greets, self._told, self._told_step = False, (generation, attempt), step
            self._received.clear()
            newest = max(welcomes, key=_when)
            said: list[wire.Welcome | wire.Abort] = [*welcomes]
            said += [heard.abort for heard in self._heard if heard.abort is not None]
            counted = max(said, key=_when).contributors
            skip = self._skip_into(generation, attempt)
            if skip is not None:  # it moved a node on that had welcomed us before
                newest = replace(
                    newest, began_with_skip=True, skipped_step=skip.step, grad_norm=skip.grad_norm
                )
            return [
                replace(
                    newest, generation=generation, attempt=attempt, step=step, contributors=counted,
                    loaded=all(w.loaded for w in welcomes) or step > 0,
                    push_window_bytes=min(w.push_window_bytes for w in welcomes),
                )
            ]  # fmt: skip
        aborts = [heard.abort for heard in self._heard]
        current = [a for a in aborts if a is not None and a.attempt == attempt]
        if generation > self._told[0] >= 0 and current:  # another opening of node 0's store
            return [_rejoin(current[0])]
        if attempt <= self._told[1] or not current:
            return []
        self._told, self._told_step, self._judged_step = (generation, attempt), step, -1
        self._received.clear()
        loaded = step > 0 or (len(current) == len(aborts) and all(a.loaded for a in current))
        return [replace(current[0], step=step, loaded=loaded)]


def _when(m: wire.Welcome | wire.Abort) -> tuple[int, int]:
    return m.generation, m.attempt


def _rejoin(m: wire.Message) -> wire.Rejoin:
    return wire.Rejoin(
        job=m.job, epoch=m.epoch, step=m.step, attempt=m.attempt, role=m.role, rank=m.rank,
        incarnation=m.incarnation, generation=m.generation,
    )  # fmt: skip
