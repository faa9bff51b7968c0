"""How patient a sender is: the times after which a request that has no answer is sent again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.base.limits import INT64_MAX


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

    @classmethod
    def from_document(cls, document: object, where: str) -> RetryPolicy:
        """The policy of a document; errors name it by `where`. Raises ConfigError."""
        if not isinstance(document, Mapping) or document.keys() != {*cls.__slots__}:
            raise ConfigError(f"{where} is {document!r:.80}, not {', '.join(cls.__slots__)}")
        first_ns, most_ns = document["first_ns"], document["most_ns"]
        for name, value, least in (("first_ns", first_ns, 1), ("most_ns", most_ns, first_ns)):
            if type(value) is not int or not least <= value <= INT64_MAX:
                raise ConfigError(
                    f"{where}.{name} is {value!r:.40}, not a whole number {least} to {INT64_MAX}"
                )
        ns_per_byte = document["ns_per_byte"]
        if type(ns_per_byte) is not float or not 0 <= ns_per_byte < math.inf:
            raise ConfigError(f"{where}.ns_per_byte is {ns_per_byte!r:.40}, not a number from 0")
        return cls(**document)
