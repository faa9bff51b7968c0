"""Parts of machines, as the catalogue describes them; frozen, in SI. And hosts made of them.

A field's type gives its dimension, and the catalogue's reader (`catalogue.py`) rejects any
other. A field without a default must be given; None where a device does not have something.

    N14  a port     carries rate * efficiency of long messages
    N16  sharing    d devices of a host share a port: each has 1/d of its rate while all send, and
                    no flow has more than the port
    H1  Adam on processors    bytes it passes over / (memory rate * efficiency)
    H2  drives                bytes read and written / their rates, at once or one after the other

N16 is of hosts with fewer network cards than devices (`nics_per_host` of a question). Hosts are the
node's, and those that offload.
Sources: ZeRO-Offload's times of its Adam give the efficiency (fitted); arXiv 2104.07857 (H2).
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, get_type_hints

from luwu.base.dtypes import DTYPES, MASTER_DTYPES
from luwu.base.errors import ConfigError
from luwu.predict.hardware.software import fitted
from luwu.predict.hardware.values import Dimension

Notes: TypeAlias = dict[str, str]
"""Of a prediction, for its readers: curve -> the sizes beyond its points."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of sizes and rates, by size; between them, straight lines over the size's logarithm.

    Below the first point the time is that of the first point (what binds there is latency, which
    does not shrink), above the last one the rate is."""

    name: str
    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        ordered = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if len(self.sizes) != len(self.rates) or not self.sizes or not ordered:
            raise ConfigError(f"{self.name}: needs sizes that rise, and a rate for each")

    def rate(self, size: float, notes: Notes | None = None) -> float:
        """The rate at a size. A size outside of the points is noted."""
        sizes, rates = self.sizes, self.rates
        if notes is not None and not sizes[0] <= size <= sizes[-1]:
            said = f"{size:.3g} is outside of {sizes[0]:.3g} to {sizes[-1]:.3g}"
            notes.setdefault(self.name, said)
        if size <= sizes[0]:
            return rates[0] * size / sizes[0]
        if size >= sizes[-1]:
            return rates[-1]
        above = bisect_left(sizes, size)
        low, high = sizes[above - 1], sizes[above]
        share = math.log(size / low) / math.log(high / low)
        return rates[above - 1] + share * (rates[above] - rates[above - 1])


Rate: TypeAlias = Annotated[float, Dimension.BYTES_PER_S]
Operations: TypeAlias = Annotated[float, Dimension.OPERATIONS_PER_S]
Bytes: TypeAlias = Annotated[float, Dimension.BYTES]
Seconds: TypeAlias = Annotated[float, Dimension.SECONDS]
Ratio: TypeAlias = Annotated[float, Dimension.RATIO]
Count: TypeAlias = Annotated[float, Dimension.COUNT]
ProductCurve: TypeAlias = Annotated[Curve, Dimension.COUNT, Dimension.OPERATIONS_PER_S]
BusCurve: TypeAlias = Annotated[Curve, Dimension.BYTES, Dimension.BYTES_PER_S]


def keys_of(kind: type) -> dict[str, tuple[Dimension, ...]]:
    """Keys of an entry of a kind: a number's dimension; of a curve those of sizes and rates."""
    found: dict[str, tuple[Dimension, ...]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for option in (hint, *getattr(hint, "__args__", ())):
            if hasattr(option, "__metadata__"):
                found[name] = option.__metadata__
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or a processor socket that does its work."""

    name: str
    memory_bytes: Bytes
    memory_rate: Rate
    """Peak."""
    memory_efficiency: Ratio
    """Share of the peak, in a stream of reads and writes."""
    bf16: Operations
    """Peak of dense matrix products with 16-bit operands."""
    fp8: Operations | None = None
    fp4: Operations | None = None
    matmul_bf16: ProductCurve | None = None
    """Achieved rate of a product by its smallest dimension."""
    matmul_fp8: ProductCurve | None = None
    all_reduce: BusCurve | None = None
    """Bus bandwidth among the devices of one domain, by size."""
    exponentials: Ratio = 1.0
    """Rate of exponentials (of attention) over that of others of its generation."""
    domain_count: Count = 1.0
    """Devices that share a fast network of their own."""
    domain_rate: Rate | None = None
    """Rate of that network, per device and direction."""
    host_rate: Rate
    """To and from the host's memory, each direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The connection of one device to a network between hosts."""

    name: str
    rate: Rate
    """Rate of one device's port, one direction."""
    efficiency: Ratio
    """Share of the rate, for large messages."""
    latency_s: Seconds
    """From one rank to another, of a small message."""
    devices_count: Count = 1.0
    """Devices of a host that share the port."""
    hop_s: Seconds = 300e-9
    """Latency of a switch on the way."""

    def __post_init__(self) -> None:
        if not self.devices_count >= 1:
            raise ConfigError(
                f"network.{self.name}.devices_count: {self.devices_count:g} share a port; 1 or "
                "more fits"
            )

    @property
    def port_rate(self) -> float:
        """Bytes per second and direction of a device while all that share its port send (N14)."""
        return self.flow_rate(1.0)

    def flow_rate(self, spread: float) -> float:
        """The same of a device while `spread` of those that share its port send; 1 is all."""
        return self.rate / max(1.0, self.devices_count * spread) * self.efficiency

    def of_nics(self, nics: int, places: int, devices: int) -> Network:
        """The same where so many NICs serve a host with places for devices, of which the job has
        so many. Raises ConfigError where neither share them evenly."""
        if places % nics and devices % nics:
            fit = ", ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
            raise ConfigError(
                f"nics_per_host: {nics} NICs are not shared evenly by the {devices} devices of a "
                f"host (devices_per_host); one of {fit} fits, and a faster network where a device "
                "has several"
            )
        return dataclasses.replace(self, devices_count=float(math.ceil(devices / nics)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A drive."""

    name: str
    read_rate: Rate
    write_rate: Rate
    memory_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """A socket of a host."""

    name: str
    cores_count: Count
    memory_rate: Rate
    bf16: Operations | None = None
    """Peak of dense matrix products with 16-bit operands."""


KINDS: Final[dict[str, type]] = {
    kind.__name__.lower(): kind for kind in (Device, Network, Disk, Processor)
}


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
