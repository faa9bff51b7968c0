"""Requests that wait for their answer, and when each is to be repeated.

Every request of the protocol is repeated until it is answered (`wire/messages.py`), with a pause
that doubles up to a cap. Pure: the caller says what time it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The times after which a sender repeats a request."""

    first_ns: int = 10_000_000_000
    """Pause before the first repetition. On links that lose nothing while they are up, as ZeroMQ's,
    repetition is a last resort: a connection that comes back makes everything due at once."""

    most_ns: int = 60_000_000_000
    """The pause doubles up to this."""

    ns_per_byte: float = 0.0
    """Time that each byte under way before an answer adds to the first pause: emulated links
    have a rate."""


def retry_policy(first_ms: int, most_ms: int, ps_per_byte: int) -> RetryPolicy | None:
    """The policy as files state it, in whole numbers; None where `first_ms` is 0: the usual one."""
    if not first_ms:
        return None
    return RetryPolicy(
        first_ns=first_ms * 1_000_000, most_ns=most_ms * 1_000_000, ns_per_byte=ps_per_byte / 1000
    )


@dataclass(slots=True)
class _Entry(Generic[RequestT]):
    request: RequestT
    due_ns: int
    pause_ns: int
    order: int = 0
    """Number of its place in the queue; older places of the same key are ghosts."""


class Outstanding(Generic[RequestT]):
    """A keyed set of requests with the time of their next repetition."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._entries: dict[Hashable, _Entry[RequestT]] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._order = 0  # ties in time are broken by age, so runs replay exactly

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def add(self, key: Hashable, request: RequestT, now_ns: int, nbytes: int = 0) -> None:
        """Remember a request just sent; an older one under this key is replaced.

        `nbytes`: what is under way before its answer can be here.
        """
        pause_ns = self._policy.first_ns + int(nbytes * self._policy.ns_per_byte)
        entry = _Entry(request, now_ns + pause_ns, pause_ns)
        self._entries[key] = entry
        self._plan(key, entry)

    def pop(self, key: Hashable) -> RequestT | None:
        """Forget a request because its answer came; None if it was not there (any more)."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry.request

    def clear(self, keep: Callable[[Hashable], bool] = lambda key: False) -> list[RequestT]:
        """Forget all but the keys to keep; what was forgotten, oldest first."""
        forgotten = [key for key in self._entries if not keep(key)]
        return [self._entries.pop(key).request for key in forgotten]

    def hurry(self, now_ns: int) -> None:
        """Everything is due now: a lost connection is back."""
        for key, entry in self._entries.items():
            entry.due_ns, entry.pause_ns = now_ns, self._policy.first_ns
            self._plan(key, entry)

    def due(self, now_ns: int) -> list[RequestT]:
        """The requests to send again now; each is planned anew with a doubled pause."""
        requests: list[RequestT] = []
        while self._due and self._due[0][0] <= now_ns:
            _, order, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is None or entry.order != order:
                continue  # answered, or planned anew, since
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
        entry.order = self._order
        heapq.heappush(self._due, (entry.due_ns, self._order, key))
        if len(self._due) > 2 * len(self._entries) + 64:  # mostly ghosts of what was answered
            live = ((e.due_ns, e.order, key) for key, e in self._entries.items())
            self._due = sorted(live)
