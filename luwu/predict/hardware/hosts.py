"""Hosts with memory and drives that take part in training: the node's, and those that offload.

    H1  Adam on processors    bytes it passes over / (memory rate * efficiency)
    H2  drives                bytes read and written / their rates, at once or one after the other

Sources: ZeRO-Offload's times of its Adam give the efficiency (fitted); arXiv 2104.07857 (H2).
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.base.dtypes import DTYPES, MASTER_DTYPES
from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Disk, Processor
from luwu.predict.hardware.software import fitted

STATE_BYTES = 12
"""Bytes of the state of a parameter: master and two moments, in float32."""
MASTER_BYTES = {name: float(DTYPES[name].nbytes) for name in MASTER_DTYPES}
"""Bytes of a parameter's master, by its dtype."""
MOMENT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1 + 4 / 64}
"""Bytes of one of its two moments, by their dtype; in 8 bits, 64 parameters share a scale."""
STREAM_SHARE = 0.8
"""Share of a socket's peak that STREAM usually reaches; assumed."""


def adam_bytes(state_bytes: float) -> float:
    """That Adam passes over for a parameter: the gradient read, the state read and written."""
    return 4 + 2 * state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of one or several devices."""

    processor: Processor
    processors: int = 2
    memory_bytes: float
    disk: Disk | None = None
    disks: int = 0

    def __post_init__(self) -> None:
        if self.disks and self.disk is None:
            raise ConfigError(f"disks: {self.disks} of them, but no disk is named")

    @property
    def memory_rate(self) -> float:
        """Rate of all sockets, as reached by a stream of reads and writes."""
        return self.processors * self.processor.memory_rate * STREAM_SHARE

    def adam(self, parameters: float) -> float:
        """Seconds in which DeepSpeed's Adam updates so many parameters in memory (H1)."""
        rate = self.processors * self.processor.memory_rate * fitted("host_memory_efficiency")
        return adam_bytes(STATE_BYTES) * parameters / rate

    def read(self, nbytes: float) -> float:
        """Seconds to read so much from all drives."""
        return nbytes / (self.disks * self._disk().read_rate) if nbytes else 0.0

    def write(self, nbytes: float) -> float:
        """Seconds to write so much to all drives."""
        return nbytes / (self.disks * self._disk().write_rate) if nbytes else 0.0

    def _disk(self) -> Disk:
        if self.disk is None or not self.disks:
            raise ConfigError("disks: the state does not fit into memory, and there is no disk")
        return self.disk
