"""Push a unit's gradient that is one flat vector: where no sharded module makes the gradients."""

from __future__ import annotations

import numpy as np

from luwu.layout import DTYPE_BYTES, Layout
from luwu.nic.cells import ChunkGradient
from luwu.nic.handles import Handle
from luwu.nic.shell import Nic


def push_flat(
    nic: Nic, layout: Layout, gradient: memoryview, dtype: str, *, step: int, unit: int, last: bool,
    part: int = 0, weight: float = 1.0,
) -> list[Handle]:  # fmt: skip
    """Copy a unit's flat gradient to cells and push them; as many pushes as there was room.

    `gradient`: the trainable parameters' part of the unit's flat vector, as bytes; it is not
    needed any more after the return.
    """
    scale = DTYPE_BYTES[dtype]
    handles: list[Handle] = []
    group: list[ChunkGradient] = []

    def push_group() -> None:
        if group:
            handles.append(nic.push(step, part, unit, group[:], dtype, last=last, weight=weight))
            group.clear()

    for index in layout.trainable_chunks(unit):
        chunk = layout.chunks[index]
        start, nbytes = chunk.start * scale, chunk.elems * scale
        cell = nic.cells.take_now(nbytes)
        if cell is None:
            push_group()
            cell = nic.cells.take(nbytes)
        np.copyto(
            np.frombuffer(cell.data, np.uint8),
            np.frombuffer(gradient[start : start + nbytes], np.uint8),
        )
        group.append(ChunkGradient(index, cell))
    push_group()
    return handles
