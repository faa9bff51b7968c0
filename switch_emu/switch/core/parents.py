"""Several optimizer nodes as the parents of a switch: each message concerns some of them.

    the core sends             goes to            the core receives
    Load, Push                 the page's owners  Received, when all of them have sent it
    Propose                    the page's owners  Agreed, likewise
    Pull                       one owner          Weights, as they are
    Keep                       owners of stripe 0 Received, when all of them have sent it
    Begin, Leave, Commit       all                Received, Decided, when all have sent it

What readers ask is in `readers.py`.

With one replica a page has one owner, with R it has R (`luwu/layout/share.py`), which pulls are
spread over. Nodes that do not count in the epoch own nothing; one that is being filled receives
what an owner does of the extents that count there, but for pulls. What else K nodes send, and what
the core sends beside this, is the business of `lead.py`. Pure.

At a node that is being filled, extents count in the order of their pages, in each step some more
than in the one before: at least one, and as many as may be copied in the time since. So a step
waits for what is copied in it, and the share of disks and links that copying takes is set by
`bytes_per_s`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from luwu.base.errors import RemoteProtocolError
from luwu.layout import Layout, Share, owners_of
from luwu.protocol.actions import PARENT, Send
from luwu.protocol.epoch import nodes_of
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.messages import Verb
from luwu.wire.reading import VersionFacts
from luwu.wire.stored import stored_bytes

STEP_MAX_S: Final = 60.0
"""Longer steps, and pauses between steps, count as this long: else the step after one would take
long too."""


class FilledNode:
    """See the module."""

    def __init__(
        self, outbox: Outbox, share: Share, filling: int, *, first_step: int,
        job: Description, bytes_per_s: float, since_ns: int,
    ) -> None:  # fmt: skip
        """`filling`: the number of its filling (`wire.Adopt.filling`); `first_step`: the first step
        that it takes part in, for which pages may be copied since `since_ns`."""
        self._outbox, self._bytes_per_s = outbox, bytes_per_s
        self.number, self.filling, self.first_step = share.number, filling, first_step
        extents = share.extents()
        self._places = {each.index: place for place, each in enumerate(extents)}
        self._bytes = [sum(stored_bytes(job, chunk) for chunk in each.chunks) for each in extents]
        sheets = share.layout.sheets
        self._goes_on = [each.index in sheets.get(each.index, ())[1:] for each in extents]
        self._chunks_to = [0, *accumulate(len(each.chunks) for each in extents)]
        """Chunks of so many extents."""
        self.chunks = [chunk for each in extents for chunk in each.chunks]
        """All chunks of the node, in the order of their pages."""
        self.state_bytes = sum(self._bytes)
        self.owns_pieces = 0 in share.stripes
        """It will keep what is attached to steps."""
        self._held: dict[int, int] = {}
        self._since_ns = since_ns

    def held(self, step: int) -> int:
        """How many extents count in a step; it stays so."""
        if step < self.first_step:
            return 0
        if step not in self._held:
            before = max(self._held.values(), default=0)
            self._held[step] = self._grown(before)
        return self._held[step]

    def holds(self, extent: int, step: int) -> bool:
        """True if an extent of the node counts in a step."""
        place = self._places.get(extent)
        return place is not None and place < self.held(step)

    def held_chunks(self, step: int) -> list[int]:
        """The chunks that count in a step."""
        return self.chunks[: self._chunks_to[self.held(step)]]

    def _grown(self, count: int) -> int:
        """So many extents count, and more."""
        now_ns = self._outbox.now_ns
        room = min((now_ns - self._since_ns) / 1e9, STEP_MAX_S) * self._bytes_per_s
        self._since_ns, first = now_ns, count
        # At least one in each step, however large: else the filling would never end. And no sheet
        # in part: it could not be updated.
        while count < len(self._bytes) and (
            count == first or self._goes_on[count] or room >= self._bytes[count]
        ):
            room -= self._bytes[count]
            count += 1
        return count


_OF_OWNERS: Final = (Verb.LOAD, Verb.PUSH, Verb.KEEP)
"""Verbs whose receipts come from the owners of a page, or of stripe 0."""
_ANSWERED_AS: Final = {wire.Load: Verb.LOAD, wire.Keep: Verb.KEEP}


def parent_names(count: int) -> tuple[str, ...]:
    """Connections to so many parents, by their number. Raises ValueError."""
    if count < 1:
        raise ValueError(f"a switch has at least one parent, got {count}")
    return (PARENT,) if count == 1 else tuple(f"{PARENT}-{number}" for number in range(count))


class Parents:
    """See the module."""

    def __init__(self, count: int, replicas: int = 1) -> None:
        """`replicas`: parents that own each page. Raises ConfigError."""
        self._all_owners = tuple(owners_of(stripe, count, replicas) for stripe in range(count))
        """The nodes of each stripe."""
        self.names = parent_names(count)
        """Their connections, by number."""
        self.count, self.replicas = count, replicas
        self._stripes: tuple[int, ...] = ()
        """The stripe of each extent."""
        self._layout: Layout | None = None
        self._received: dict[tuple[int, int, int, Hashable], set[int]] = {}
        """(generation, attempt, step, what is answered) -> nodes that have answered."""
        self.count_only((1 << count) - 1)

    def owners(self, stripe: int) -> tuple[int, ...]:
        """The nodes of a stripe, whether they count or not."""
        return self._all_owners[stripe]

    def covers(self, members: int) -> bool:
        """True if each stripe has an owner among these nodes."""
        return not self.without_owner(members)

    def without_owner(self, members: int) -> list[tuple[int, tuple[int, ...]]]:
        """The stripes that none of these nodes owns, each with its owners."""
        return [
            (stripe, owners)
            for stripe, owners in enumerate(self._all_owners)
            if not any(members >> node & 1 for node in owners)
        ]

    def count_only(self, members: int, filled: FilledNode | None = None) -> None:
        """From now on these nodes count, and no answer is awaited; one more is being filled."""
        self.filled = filled
        self.everyone = nodes_of(members if filled is None else members | 1 << filled.number)
        """Nodes that count, and that which is being filled."""
        self._owners = tuple(
            tuple(node for node in owners if members >> node & 1) for owners in self._all_owners
        )
        self._received.clear()
        self._spread_pulls()

    def taking_part(self, step: int) -> tuple[int, ...]:
        """The nodes that decide a step."""
        filled = self.filled
        if filled is None or step >= filled.first_step:
            return self.everyone
        return tuple(number for number in self.everyone if number != filled.number)

    def learn(self, layout: Layout) -> None:
        """The job's layout is known: nothing of an extent is sent before."""
        self._stripes = tuple(layout.extent_stripe(each.index) for each in layout.extents)
        self._layout = layout
        self._spread_pulls()

    def learn_chunks(self, held: VersionFacts) -> None:
        """A reader's version, where there may be no workers: what it reads are chunks."""
        if self._layout is None:
            with suppress(RemoteProtocolError):  # then its reader reports it
                self._layout = held.job.layout

    def stripe(self, chunk: int) -> int:
        """The stripe of a chunk; of one that there is not, any."""
        return chunk % self.count if self._layout is None else self._layout.stripe(chunk)

    def _spread_pulls(self) -> None:
        """The extents of a stripe are pulled from its owners in turn."""
        seen, readers = Counter[int](), []
        for stripe in self._stripes:
            owners = self._owners[stripe] or (0,)
            readers.append(owners[seen[stripe] % len(owners)])
            seen[stripe] += 1
        self._readers = tuple(readers)

    # ---------------------------------------------------------------------- upwards

    def sends(self, m: wire.Message, payload: Any) -> list[Send]:
        """What the core sends, to the nodes that must receive it."""
        filled, numbers = self.filled, self.concerned(m)
        if filled is None or not isinstance(m, wire.Commit):
            return [Send(tuple(self.names[n] for n in numbers), m, payload)]
        members = tuple(self.names[n] for n in numbers if n != filled.number)
        its = replace(m, held=filled.held(m.step))
        return [Send(members, m, payload), Send((self.names[filled.number],), its, payload)]

    def concerned(self, m: wire.Message) -> tuple[int, ...]:
        """The nodes that must receive what the core sends."""
        if not isinstance(m, wire.DataMessage):
            return self.everyone
        if isinstance(m, wire.Pull) and m.index < len(self._stripes):
            return (self._readers[m.index],)
        return self._owners_of(m)

    def _owners_of(self, m: wire.DataMessage) -> tuple[int, ...]:
        """The nodes that receive this, or from which it must come."""
        filled = self.filled
        verb = m.verb if isinstance(m, wire.Received) else _ANSWERED_AS.get(type(m))
        if verb is Verb.KEEP:
            owners, is_more = self._owners[0], filled is not None and filled.owns_pieces
        elif verb is Verb.LOAD or m.index >= len(self._stripes):
            return self._owners[self.stripe(m.index)]  # none answers of what there is not
        else:
            owners = self._owners[self._stripes[m.index]]
            is_more = filled is not None and filled.holds(m.index, m.step)
        return (*owners, filled.number) if filled is not None and is_more else owners

    def holder(self, chunk: int) -> int:
        """A node that has the page of a chunk; neighbours are spread over those that do."""
        owners = self._owners[self.stripe(chunk)]
        return owners[chunk // self.count % len(owners)]

    # ---------------------------------------------------------------------- downwards

    def received(self, number: int, m: wire.Message) -> list[wire.Message]:
        """The message that the core receives once a node has sent this one, if it does."""
        if isinstance(m, wire.Received) and m.verb in (Verb.BEGIN, Verb.LEAVE):
            return self.when_all(number, m, self.everyone, m.verb)
        if isinstance(m, wire.Received) and m.verb in _OF_OWNERS:
            what = (m.verb, m.index, m.part, m.contributors)
            return self.when_all(number, m, self._owners_of(m), what)
        if isinstance(m, wire.Agreed):
            return self.when_all(number, m, self._owners_of(m), (wire.Agreed, m.index, m.part))
        return [m]

    def when_all(
        self, number: int, m: wire.Message, nodes: Sequence[int], what: Hashable
    ) -> list[wire.Message]:
        """The answer of one node, once those nodes have all answered the same."""
        if len(nodes) == 1:
            return [m]
        key = (m.generation, m.attempt, m.step, what)
        numbers = self._received.setdefault(key, set())
        numbers.add(number)
        if not numbers.issuperset(nodes):
            return []
        del self._received[key]
        return [m]

    def forget(self, step: int) -> None:
        """A step is decided: answers of the steps before it are not awaited any more."""
        for key in [key for key in self._received if key[2] < step]:
            del self._received[key]
