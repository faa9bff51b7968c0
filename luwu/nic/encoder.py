"""The arithmetic of an aggregator at a worker, which its I/O thread applies to gradients."""

from __future__ import annotations

from luwu.aggregate import make_aggregator
from luwu.aggregate.float32 import as_float32
from luwu.aggregate.interface import F32Array
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.nic.core.actions import Encode, Measure
from luwu.nic.memory import Cell, Cells, private_memory
from luwu.protocol.actions import Payload
from luwu.wire.description import AGGREGATE, Description

PATIENCE_S = 3.0
"""How long gradients may wait for those of other ranks before more of them are written."""


class Encoder:
    """Measures and encodes gradients that lie in cells."""

    def __init__(
        self, aggregate: str, *, rank: int, world_size: int,
        cells: Cells, recorder: Recorder,
    ) -> None:  # fmt: skip
        """`aggregate`: the aggregator's name; `cells`: for what travels. Raises ConfigError."""
        self.aggregator = make_aggregator(aggregate, world_size)
        self._rank, self._recorder = rank, recorder
        self._cells = cells

    def described(self, description: Description) -> Description:
        """The job with the aggregator among what its ranks agree on. Raises ConfigError."""
        if AGGREGATE in description.agreement:
            raise ConfigError(f"{AGGREGATE!r} is agreed on by luwu; call it otherwise in agree=")
        elems_max = max(extent.elems for extent in description.layout.extents)
        nbytes = self.aggregator.encoded_bytes(elems_max)
        if nbytes > PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"chunk: one of {elems_max} elements takes {nbytes} bytes with "
                f"--aggregate {self.aggregator.name}, more than the {PAYLOAD_BYTES_MAX} that fit a "
                "message; give a smaller --chunk"
            )
        return description.aggregated_by(self.aggregator.name)

    def measure(self, action: Measure) -> bytes:
        """The answer to a `Measure`: what all ranks must know of this gradient."""
        return self.aggregator.measure(_values(action.payload, action.push.dtype))

    def encode(self, action: Encode) -> Cell:
        """The answer to an `Encode`: the gradient as it travels."""
        push = action.push
        values = _values(action.payload, push.dtype)
        nbytes = self.aggregator.encoded_bytes(values.size)
        # Without memory of the transport: one that is sent as a copy.
        cell = self._cells.take_now(nbytes) or Cell(private_memory(nbytes))
        start_ns = SYSTEM_CLOCK.now_ns()
        used = self.aggregator.encode(values, action.agreed, cell.data)
        cell.data = cell.data[:used]
        self._recorder.span(
            "encode", start_ns, SYSTEM_CLOCK.now_ns(), step=push.step, extent=push.index,
            rank=self._rank, bytes=used,
        )  # fmt: skip
        return cell


def _values(payload: Payload, dtype: str) -> F32Array:
    assert isinstance(payload, Cell)
    return as_float32(payload.data, dtype)
