"""How patient a sender is: the times after which a request that has no answer is sent again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The times after which a sender repeats a request."""

    first_ns: int = 10_000_000_000
    """Pause before the first repetition. On links that lose nothing while they are up, as ZeroMQ's,
    a connection that comes back makes everything due at once."""

    most_ns: int = 60_000_000_000
    """The pause doubles up to this."""

    ns_per_byte: float = 0.0
    """Time that each byte under way before an answer adds to the first pause: emulated links
    have a rate."""

    patience_ns: int = 0
    """Time for which a request is not repeated as long as its peer answers others in each pause."""


LAST_RESORT: Final = RetryPolicy(patience_ns=60_000_000_000)
"""On links that lose nothing while they are up. A slow one is busy with what was asked for already:
at 10 Mbit/s an answer takes more than ten seconds, and asked for twice it is sent twice."""
