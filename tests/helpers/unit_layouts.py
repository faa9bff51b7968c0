"""Layouts of units of which only the numbers of elements are known."""

from __future__ import annotations

from collections.abc import Sequence

from luwu.estimate.gpt import ROOT
from luwu.layout import Layout, Parameter, Unit


def layout_of_units(
    unit_elems: Sequence[int], *, chunk_bytes: int, dtype: str = "float32",
    frozen_units: Sequence[int] = (), root_elems: int = 0, extent_chunks: int = 1,
) -> Layout:  # fmt: skip
    """A layout of units known by their numbers of elements only, the root first if it has any."""
    sizes = [(ROOT, root_elems)] if root_elems else []
    sizes += [(f"unit{index}", elems) for index, elems in enumerate(unit_elems)]
    frozen = {f"unit{index}" for index in frozen_units}
    return Layout(
        parameters=tuple(
            Parameter(name=f"{name}.flat", shape=(elems,), wire_dtype=dtype,
                      trainable=name not in frozen)
            for name, elems in sizes
        ),
        units=tuple(Unit(name=name, parameters=(i,)) for i, (name, _) in enumerate(sizes)),
        chunk_bytes=chunk_bytes, extent_chunks=extent_chunks,
    )  # fmt: skip
