"""How patient a sender is: the times after which a request that has no answer is sent again."""

from __future__ import annotations

from dataclasses import dataclass


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
