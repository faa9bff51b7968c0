"""Requests and when each is repeated; requests of a child to its parent. Pure.

Every request of the protocol is repeated until it is answered (`luwu/wire/messages.py`), with a
pause that doubles up to a cap (`Outstanding`); the caller says what time it is.

Worker and switch ask their parent by an `Uplink`. A *request* goes out at once. *Cargo* carries a
data payload: it waits its turn until the parent's window, a credit in bytes granted by `Welcome`,
has room, and its payload is dropped when the parent has received it. Cargo larger than the whole
window travels alone.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import PARENT, Drop, Payload, Send
from luwu.wire.messages import DataMessage, Message, Pull

RequestT = TypeVar("RequestT")


def earliest(*times_ns: int | None) -> int | None:
    """The first of some times; None is never."""
    return min((at_ns for at_ns in times_ns if at_ns is not None), default=None)


@dataclass(slots=True)
class _Entry(Generic[RequestT]):
    request: RequestT
    due_ns: int
    pause_ns: int
    patient_until_ns: int
    """Not repeated before, as long as others are answered."""
    answers_count: int = 0
    """Answers to any request, when it was planned."""
    order: int = 0
    """Number of its place in the queue; older places of the same key are ghosts."""


class Outstanding(Generic[RequestT]):
    """A keyed set of requests with the time of their next repetition."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._entries: dict[Hashable, _Entry[RequestT]] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._order = 0  # ties in time are broken by age, so runs replay exactly
        self._answers_count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def add(self, key: Hashable, request: RequestT, now_ns: int, nbytes: int = 0) -> None:
        """Remember a request just sent; an older one under this key is replaced.

        `nbytes`: what is under way before its answer can be here.
        """
        pause_ns = self._policy.first_ns + int(nbytes * self._policy.ns_per_byte)
        entry = _Entry(request, now_ns + pause_ns, pause_ns, now_ns + self._policy.patience_ns)
        self._entries[key] = entry
        self._plan(key, entry)

    def pop(self, key: Hashable) -> RequestT | None:
        """Forget a request because its answer came; None if it was not there (any more)."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._answers_count += 1
        return entry.request

    def clear(self, keep: Callable[[Hashable], bool] = lambda key: False) -> list[RequestT]:
        """Forget all but the keys to keep; what was forgotten, oldest first."""
        forgotten = [key for key in self._entries if not keep(key)]
        return [self._entries.pop(key).request for key in forgotten]

    def hurry(self, now_ns: int) -> None:
        """Everything is due now: a lost connection is back."""
        for key, entry in self._entries.items():
            entry.due_ns, entry.pause_ns = now_ns, self._policy.first_ns
            entry.patient_until_ns = now_ns
            self._plan(key, entry)

    def due(self, now_ns: int) -> list[RequestT]:
        """The requests to send again now; each is planned again with a doubled pause.

        One that the policy is patient with is only planned again, if others were answered.
        """
        requests: list[RequestT] = []
        while self._due and self._due[0][0] <= now_ns:
            _, order, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is None or entry.order != order:
                continue  # answered, or planned anew, since
            if entry.answers_count == self._answers_count or now_ns >= entry.patient_until_ns:
                requests.append(entry.request)
                entry.pause_ns = max(entry.pause_ns, min(entry.pause_ns * 2, self._policy.most_ns))
            entry.due_ns = now_ns + entry.pause_ns
            self._plan(key, entry)
        return requests

    def next_due_ns(self) -> int | None:
        """The time to call `due` next; None while nothing waits."""
        while self._due:
            due_ns, order, key = self._due[0]
            entry = self._entries.get(key)
            if entry is not None and entry.order == order:
                return due_ns
            heapq.heappop(self._due)
        return None

    def _plan(self, key: Hashable, entry: _Entry[RequestT]) -> None:
        self._order += 1
        entry.order, entry.answers_count = self._order, self._answers_count
        heapq.heappush(self._due, (entry.due_ns, self._order, key))
        if len(self._due) > 2 * len(self._entries) + 64:  # mostly ghosts of what was answered
            live = ((e.due_ns, e.order, key) for key, e in self._entries.items())
            self._due = sorted(live)


@dataclass(frozen=True, slots=True)
class Cargo:
    """A data message and the payload it carries."""

    message: DataMessage
    payload: Payload | None
    payload_bytes: int
    on_way: Callable[[], None] | None = None
    """Called when it enters the window: from then on the uplink holds it."""


@dataclass(frozen=True, slots=True)
class _OneOf:
    """One extent of a request for several."""

    message: Pull
    index: int

    def alone(self) -> Send:
        """The request for this extent alone."""
        index = self.message.index + self.index
        return Send((PARENT,), replace(self.message, index=index, count=1))


class Uplink:
    """Requests and cargo of one child; `actions` is where what is to be done is appended."""

    def __init__(self, actions: list[Any], retry: RetryPolicy) -> None:
        self._actions = actions
        self._asked: Outstanding[Send | _OneOf] = Outstanding(retry)
        self._queue: deque[tuple[Hashable, Cargo]] = deque()
        self._under_way: dict[Hashable, Cargo] = {}
        self._window_used = 0
        self._largest_bytes = 0
        """Size of the largest cargo so far: requested weights come in messages of such a size."""
        self.window_bytes = 0
        self.repeated_count = 0
        """Messages that were repeated because no answer came in time."""

    def __len__(self) -> int:
        """Answers awaited."""
        return len(self._asked)

    def ask(
        self, now_ns: int, name: Hashable, message: Message, payload: bytes | None = None
    ) -> None:
        """Send a request and repeat it until `answered(name)`."""
        send = Send((PARENT,), message, payload)
        self._asked.add(name, send, now_ns, self._window_used + self._largest_bytes)
        self._actions.append(send)

    def ask_for(self, now_ns: int, names: Sequence[Hashable], pull: Pull) -> None:
        """Send one request for several extents, a name each; each is repeated until answered.

        What is missing when it is due is requested alone.
        """
        nbytes = self._window_used + self._largest_bytes
        for index, name in enumerate(names):
            self._asked.add(name, _OneOf(pull, index), now_ns, nbytes)
        self._actions.append(Send((PARENT,), pull))

    def asks(self, name: Hashable) -> bool:
        """True if a request of this name waits for its answer."""
        return name in self._asked

    def answered(self, name: Hashable) -> bool:
        """Stop repeating a request; False if none of this name waits."""
        return self._asked.pop(name) is not None

    def answer(self, name: Hashable) -> Send | None:
        """The same; what was asked, or None."""
        asked = self._asked.pop(name)
        return asked.alone() if isinstance(asked, _OneOf) else asked

    def load(self, now_ns: int, name: Hashable, cargo: Cargo) -> None:
        """Send cargo as soon as the window has room."""
        self._largest_bytes = max(self._largest_bytes, cargo.payload_bytes)
        self._queue.append((name, cargo))
        self._fill_window(now_ns)

    def holds(self, name: Hashable) -> bool:
        """True if this cargo waits or is under way."""
        return name in self._under_way or any(queued == name for queued, _ in self._queue)

    def arrived(self, now_ns: int, name: Hashable) -> bool:
        """The parent has received the cargo; False if it was not under way."""
        cargo = self._under_way.pop(name, None)
        if cargo is None:
            return False
        self._asked.pop(name)
        self._window_used -= cargo.payload_bytes
        self._drop(cargo)
        if self._queue:
            self._fill_window(now_ns)
        return True

    def forget(self, keep: Callable[[Hashable], bool] = lambda name: False) -> None:
        """Drop all cargo and all requests but those to keep: a new attempt begins."""
        for _, cargo in self._queue:
            self._drop(cargo)
        for cargo in self._under_way.values():
            self._drop(cargo)
        self._queue.clear()
        self._under_way.clear()
        self._window_used = 0
        self._asked.clear(keep)

    def hurry(self, now_ns: int) -> None:
        """Repeat everything at the next tick: the connection was lost and is back."""
        self._asked.hurry(now_ns)

    def tick(self, now_ns: int) -> None:
        """Repeat what is due."""
        due = self._asked.due(now_ns)
        self.repeated_count += len(due)
        self._actions.extend(each.alone() if isinstance(each, _OneOf) else each for each in due)

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self._asked.next_due_ns()

    def _fill_window(self, now_ns: int) -> None:
        while self._queue:
            name, cargo = self._queue[0]
            needed = self._window_used + cargo.payload_bytes
            if needed > self.window_bytes and self._window_used > 0:
                return
            self._queue.popleft()
            self._window_used = needed
            self._under_way[name] = cargo
            send = Send((PARENT,), cargo.message, cargo.payload)
            self._asked.add(name, send, now_ns, self._window_used + self._largest_bytes)
            self._actions.append(send)
            if cargo.on_way is not None:
                cargo.on_way()

    def _drop(self, cargo: Cargo) -> None:
        if cargo.payload is not None:
            self._actions.append(Drop(cargo.payload))


def neighbours(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers: (index of the first, length) of each."""
    runs: list[tuple[int, int]] = []
    for index, number in enumerate(numbers):
        if runs and number == numbers[index - 1] + 1:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs
