"""Weights that changed after their node made them: found before they are used.

Replicas of a page are compared, but each extent's weights come from one node. So with replicas, a
node sends a checksum with them, computed as soon as they are made. Every receiver, switch or
worker, compares it with the bytes that came. Altered weights are dropped and asked for again at
once; a receiver that gets them altered several times ends.
"""

from __future__ import annotations

from collections import Counter

import xxhash

from luwu.base.errors import StateError
from luwu.base.limits import INT64_MAX
from luwu.wire.messages import Weights

ASKED_MAX = 3
"""How often weights of one extent may come altered in a step: more is no chance."""


class WeightsAlteredError(StateError):
    """Weights came altered whenever they were asked for."""

    code = "E513"


def checksum_of(data: memoryview) -> int:
    """xxh3 of the bytes, in 63 bits; never 0."""
    return xxhash.xxh3_64_intdigest(data) & INT64_MAX or 1


class AlteredWeights:
    """What came altered, of one receiver."""

    def __init__(self, receiver: str) -> None:
        self._receiver = receiver
        self._counts: Counter[tuple[int, int]] = Counter()

    def has(self, message: Weights, data: memoryview) -> bool:
        """True if these differ from their checksum, and must be asked for again.

        Raises WeightsAlteredError after `ASKED_MAX` times.
        """
        found = checksum_of(data)
        if found == message.checksum:
            return False
        key = (message.step, message.index)
        self._counts[key] += 1
        if self._counts[key] > ASKED_MAX:
            raise WeightsAlteredError(
                f"weights of extent {message.index} for step {message.step} came to "
                f"{self._receiver} altered {self._counts[key]} times: {data.nbytes} bytes with "
                f"checksum {found:#x}, and the node that made them states {message.checksum:#x}. "
                "Check the memory of the hosts of the switch and the nodes, then start again with "
                "--resume"
            )
        return True
