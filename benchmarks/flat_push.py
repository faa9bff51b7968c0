"""Push a unit's gradient that is one flat vector: where no sharded module makes the gradients."""

from __future__ import annotations

import numpy as np

from luwu.base.dtypes import DTYPES
from luwu.layout import Layout
from luwu.nic.memory import ExtentGradient
from luwu.nic.shell import Nic
from luwu.nic.threads import Handle


def push_flat(
    nic: Nic, layout: Layout, gradient: memoryview, dtype: str, *, step: int, unit: int, last: bool,
    part: int = 0, weight: float = 1.0,
) -> list[Handle]:  # fmt: skip
    """Copy a unit's flat gradient to cells and push them; as many pushes as there was room.

    `gradient`: the trainable parameters' part of the unit's flat vector, as bytes; it is not
    needed any more after the return.
    """
    scale = DTYPES[dtype].nbytes
    handles: list[Handle] = []
    group: list[ExtentGradient] = []

    def push_group() -> None:
        if group:
            handles.append(nic.push(step, part, unit, group[:], dtype, last=last, weight=weight))
            group.clear()

    for index in layout.trainable_extents(unit):
        extent = layout.extents[index]
        nbytes = extent.elems * scale
        cell = nic.cells.take_now(nbytes)
        if cell is None:
            push_group()
            cell = nic.cells.take(nbytes)
        at = 0
        for first, elems in extent.runs:
            start, size = first * scale, elems * scale
            np.copyto(
                np.frombuffer(cell.data[at : at + size], np.uint8),
                np.frombuffer(gradient[start : start + size], np.uint8),
            )
            at += size
        group.append(ExtentGradient(index, cell))
    push_group()
    return handles
