"""The parents of a switch: one, or K optimizer nodes that look like one to the rest of the core.

The parts of the core send to `PARENT` and receive from it. With one parent nothing is done here.
With K, a message goes to those it concerns, and their answers become the one that is expected:

    the core sends             goes to            the core receives
    Load, Push                 the page's owners  Received, when all of them have sent it
    Propose, Confirm           the page's owners  Agreed, Confirmed, likewise
    Pull                       one owner          Weights, as they are
    Keep                       owners of stripe 0 Received, when all of them have sent it
    Cancel, Present            node 0             its answer, as it is
    Hello                      all                Welcome, when all have welcomed the switch and are
                                                  at the same attempt and step; Refuse of any
    Begin, Leave               all                Received, when all have sent it
    Commit                     all                Verdict and Decided, each when all have sent it
    of an older attempt        all or one         Abort, when all are at the new attempt
    anything                                      Rejoin of any: then all are asked

With one replica a page has one owner, with R it has R (`luwu/layout/share.py`), which pulls are
spread over. The core learns of a new attempt, or of the end of a
step, only when it can go on at every node: nothing it sends next has to be sent twice. A node that
stays behind while another repeats an Abort may have been started again when the core had nothing to
ask of it: it is greeted, with the core's own Hello.

Readers are refused: the nodes' versions would have to be pinned as one. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.layout import Layout, owners_of
from luwu.protocol.actions import PARENT, Send
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb

NO_READERS = (
    "a job with several optimizer nodes cannot be read while it runs; wait for its end, and "
    "export its state with `luwu export`, or train with --optimizer-nodes 1"
)

_OF_OWNERS: Final = (Verb.LOAD, Verb.PUSH, Verb.KEEP)
"""Verbs whose receipts come from the owners of a page, or of stripe 0."""

Position = tuple[int, int, int]
"""(generation, attempt, first undecided step): where a node is; it never goes back."""


def parent_names(count: int) -> tuple[str, ...]:
    """Connections to so many optimizer nodes, by their number."""
    return (PARENT, *(f"{PARENT}-{number}" for number in range(1, count)))


@dataclass(slots=True)
class _Parent:
    """The latest messages of one node."""

    position: Position = (-1, -1, -1)
    welcome: wire.Welcome | None = None
    """Welcome of the present start of the node, on the present connection."""
    abort: wire.Abort | None = None
    verdict: wire.Verdict | None = None
    decided: wire.Decided | None = None

    def moved(self, generation: int, attempt: int, step: int) -> bool:
        """The node states where it is; False if that is out of date."""
        stated = (generation, attempt, step)
        if stated[:2] < self.position[:2]:
            return False
        self.position = max(self.position, stated)
        return True


class Parents:
    """See the module."""

    def __init__(self, count: int, replicas: int = 1) -> None:
        """`replicas`: parents that own each page. Raises ValueError, ConfigError."""
        if count < 1:
            raise ValueError(f"a switch has at least one parent, got {count}")
        self._owners = tuple(owners_of(stripe, count, replicas) for stripe in range(count))
        """The nodes of each stripe."""
        self.names = parent_names(count)
        """Their connections, by number."""
        self.is_one = count == 1
        self._all = tuple(range(count))
        self._stripes: tuple[int, ...] = ()
        """The stripe of each extent."""
        self._readers: tuple[int, ...] = ()
        """The node that each extent is pulled from."""
        self._parents = [_Parent() for _ in self._all]
        self._received: dict[tuple[int, int, int, Hashable], set[int]] = {}
        """(generation, attempt, step, what is answered) -> nodes that have answered."""
        self._hello: tuple[wire.Hello, object] | None = None
        """The core's last, and its payload."""
        self._behind: tuple[int, ...] = ()
        self._awaits_welcome = False
        """The core has sent Hello and was not welcomed yet."""
        self._known = (-1, -1)
        """(generation, attempt) that the core knows."""
        self._known_step = 0
        """The first undecided step that it knows."""
        self._judged_step = -1
        """Step of the last verdict that the core received, unless its attempt was aborted since."""

    # ---------------------------------------------------------------------- upwards

    def routed(self, actions: Sequence[Any]) -> list[Any]:
        """The same actions, with the nodes that a message concerns in place of the parent; behind
        them Hello to nodes that must be greeted."""
        found: list[Any] = []
        for action in actions:
            if isinstance(action, Send) and action.peers == (PARENT,):
                numbers = self.concerned(action.message, action.payload)
                peers = tuple(self.names[number] for number in numbers)
                found.append(Send(peers, self.stamped(action.message), action.payload))
            else:
                found.append(action)
        for number, hello, description in self.greetings():
            found.append(Send((self.names[number],), hello, description))
        return found

    def stamped(self, m: wire.Message) -> wire.Message:
        """The core's message for one node; a Hello with the latest attempt that any node has
        stated, which the core may not know yet. The step is the node's own: it may have to follow
        node 0.
        """
        if not isinstance(m, wire.Hello):
            return m
        stated = (parent.position[:2] for parent in self._parents)
        generation, attempt = max((m.generation, m.attempt), *stated)
        return replace(m, generation=generation, attempt=attempt)

    def concerned(self, m: wire.Message, payload: object = None) -> tuple[int, ...]:
        """The nodes that must receive what the core sends."""
        if isinstance(m, wire.Hello):
            self._awaits_welcome, self._hello = True, (m, payload)
        if isinstance(m, wire.Present) and self._hello is not None:
            hello, description = self._hello
            self._hello = (replace(hello, present=m.contributors, roll=m.roll), description)
        if isinstance(m, wire.Cancel | wire.Present):
            return (0,)
        if isinstance(m, wire.DataMessage):
            return self._owners_of(m)
        return self._all

    def _owners_of(self, m: wire.DataMessage) -> tuple[int, ...]:
        if isinstance(m, wire.Keep):
            return self._owners[0]
        if isinstance(m, wire.Load) or m.index >= len(self._stripes):
            return self._owners[m.index % len(self._all)]  # none answers of what there is not
        if isinstance(m, wire.Pull):
            return (self._readers[m.index],)
        return self._owners[self._stripes[m.index]]

    def learn(self, layout: Layout) -> None:
        """The job's layout is known: nothing of an extent is sent before."""
        if self.is_one:
            return  # it may be a switch, to which the stripes of nodes are nothing
        self._stripes = tuple(layout.extent_stripe(each.index) for each in layout.extents)
        seen, readers = Counter[int](), []
        for stripe in self._stripes:  # the extents of a stripe are pulled from its owners in turn
            owners = self._owners[stripe]
            readers.append(owners[seen[stripe] % len(owners)])
            seen[stripe] += 1
        self._readers = tuple(readers)

    def greetings(self) -> list[tuple[int, wire.Message, object]]:
        """Hello to the nodes to which it must be sent now: (node, message, payload)."""
        behind, self._behind = self._behind, ()
        if self._hello is None or not behind:
            return []
        hello = self.stamped(self._hello[0])
        return [(number, hello, self._hello[1]) for number in behind]

    @staticmethod
    def refusal(m: wire.ReaderRequest) -> wire.Gone:
        """The answer to any reader of several nodes."""
        return wire.Gone(
            job=m.job, epoch=m.epoch, step=m.step, attempt=m.attempt, role=m.role, rank=m.rank,
            incarnation=m.incarnation, generation=m.generation, reader=m.reader,
            text=NO_READERS[:TEXT_CHARS_MAX],
        )  # fmt: skip

    def reconnected(self, number: int) -> None:
        """A connection is there, or there again; the core will send Hello."""
        self._parents[number].welcome = None

    # ---------------------------------------------------------------------- downwards

    def received(self, number: int, m: wire.Message) -> list[wire.Message]:
        """The messages that the core receives once a node has sent this one."""
        parent = self._parents[number]
        if isinstance(m, wire.Welcome):
            if parent.moved(m.generation, m.attempt, m.step):
                parent.welcome = m
            return self._agreed()
        if isinstance(m, wire.Abort):
            before = parent.position
            if parent.moved(m.generation, m.attempt, m.step):
                parent.abort = m
            if parent.position == before:
                self._look_behind(before)
            return self._agreed()
        if isinstance(m, wire.Verdict):
            if parent.moved(m.generation, m.attempt, m.step):
                parent.verdict = m
            return [*self._judged(m), *self._agreed()]
        if isinstance(m, wire.Decided):
            if parent.moved(m.generation, m.attempt, m.step + 1):
                parent.decided = m
            return [*self._decided(m), *self._agreed()]
        if isinstance(m, wire.Received) and m.verb in (Verb.BEGIN, Verb.LEAVE):
            return self._when_all(number, m, self._all, m.verb)
        if isinstance(m, wire.Received) and m.verb in _OF_OWNERS:
            owners = self._owners_of(m)
            if m.verb is not Verb.PUSH:
                owners = self._owners[m.index % len(self._all) if m.verb is Verb.LOAD else 0]
            return self._when_all(number, m, owners, (m.verb, m.index, m.part, m.contributors))
        if isinstance(m, wire.Agreed | wire.Confirmed):
            fits = m.fits if isinstance(m, wire.Confirmed) else None
            return self._when_all(number, m, self._owners_of(m), (type(m), m.index, m.part, fits))
        if isinstance(m, wire.Rejoin):
            parent.welcome = None
        return [m]

    def _look_behind(self, position: Position) -> None:
        parents = enumerate(self._parents)
        self._behind = tuple(n for n, parent in parents if parent.position[:2] < position[:2])

    def _judged(self, m: wire.Verdict) -> list[wire.Message]:
        verdicts = [parent.verdict for parent in self._parents]
        same = (m.generation, m.attempt, m.step)
        if any(v is None or (v.generation, v.attempt, v.step) != same for v in verdicts):
            return []
        self._skipped(m)
        self._judged_step = m.step
        return [m]

    def _decided(self, m: wire.Decided) -> list[wire.Message]:
        decided = [parent.decided for parent in self._parents]
        if any(d is None or d.step != m.step for d in decided):
            return []
        known = (d for d in decided if d is not None)
        newest = max(known, key=lambda d: (d.generation, d.attempt))
        if m.step != self._judged_step and m.step >= self._known_step:
            # Else the core knows how the step came out, and takes no attempt from it: what is sent
            # again is stamped with the attempt of now, which may have come by an abort since.
            self._skipped(newest)
        self._known_step = max(self._known_step, m.step + 1)
        for key in [key for key in self._received if key[2] < m.step]:
            del self._received[key]
        return [newest]

    def _skipped(self, m: wire.Verdict | wire.Decided) -> None:
        """A step that is skipped brings its new attempt along."""
        if not m.applied:
            self._known = max(self._known, (m.generation, m.attempt))

    def _skip_into(self, generation: int, attempt: int) -> wire.Verdict | None:
        """The verdict that opened an attempt, if a node sent one."""
        for parent in self._parents:
            v = parent.verdict
            if (
                v is not None
                and not v.applied
                and (v.generation, v.attempt) == (generation, attempt)
            ):
                return v
        return None

    def _when_all(
        self, number: int, m: wire.Message, nodes: Sequence[int], what: Hashable
    ) -> list[wire.Message]:
        """The answer of one node, once those nodes have all answered the same."""
        if len(nodes) == 1:
            return [m]
        key = (m.generation, m.attempt, m.step, what)
        numbers = self._received.setdefault(key, set())
        numbers.add(number)
        if len(numbers) < len(nodes):
            return []
        del self._received[key]
        return [m]

    def _agreed(self) -> list[wire.Message]:
        """A Welcome or an Abort, if all nodes are now where the core does not know them to be."""
        position = self._parents[0].position
        if any(parent.position != position for parent in self._parents):
            return []
        return self._welcomed(position) if self._awaits_welcome else self._aborted(position)

    def _welcomed(self, position: Position) -> list[wire.Message]:
        """All nodes are at one position; the Welcome, if all have sent theirs."""
        generation, attempt, step = position
        welcomes = [parent.welcome for parent in self._parents if parent.welcome is not None]
        if len(welcomes) < len(self._all):
            return []
        if self._known != (generation, attempt):  # else only the connection was lost
            self._judged_step = -1
        self._awaits_welcome, self._known, self._known_step = False, (generation, attempt), step
        self._received.clear()
        newest = max(welcomes, key=_when)
        stated: list[wire.Welcome | wire.Abort] = [*welcomes]
        stated += [parent.abort for parent in self._parents if parent.abort is not None]
        counted = max(stated, key=_when).contributors
        skip = self._skip_into(generation, attempt)
        if skip is not None:  # it moved a node on that had welcomed the switch before
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

    def _aborted(self, position: Position) -> list[wire.Message]:
        """All nodes are at one position; the Abort that led there, if the core does not know it."""
        generation, attempt, step = position
        aborts = [parent.abort for parent in self._parents]
        current = [a for a in aborts if a is not None and a.attempt == attempt]
        if generation > self._known[0] >= 0 and current:  # another opening of node 0's store
            return [_rejoin(current[0])]
        if attempt <= self._known[1] or not current:
            return []
        self._known, self._known_step, self._judged_step = (generation, attempt), step, -1
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
