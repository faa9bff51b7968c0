"""The parts of a page that an update changes, and their counts of updates.

A *segment* is the part of one parameter that lies in a chunk. A page counts the updates of each of
its segments: a parameter for which no rank has a gradient keeps its weights, its optimizer state
and its count, as in torch, although others in the page are updated.

A state made by an older version has one count per page. It is valid as long as all segments of the
page are updated together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luwu.base.errors import StateError
from luwu.layout import Layout, Segment, segment_runs
from luwu.wire.hyper import StepHyper
from switch_emu.node.kernels.interface import Run


def update_runs(
    layout: Layout, chunk: int, hyper: StepHyper, counts: np.ndarray, absent: int
) -> list[Run]:
    """The runs of one update of a page.

    `counts`: int64 [segments], or [1] for all of them: their updates so far. `absent`: bitmap of
    the segments without a gradient. Raises StateError if only some segments are updated and the
    page has one count for all.
    """
    segments = tuple(layout.segments(chunk))
    if absent and counts.size < len(segments):
        raise _one_count_error(layout, chunk, segments, absent)
    labels = [
        None
        if absent >> index & 1
        else (layout.parameters[segment.parameter].group, int(counts[index % counts.size]))
        for index, segment in enumerate(segments)
    ]
    return [
        Run(start=start, stop=stop, hyper=None)
        if label is None
        else Run(start=start, stop=stop, hyper=hyper.groups[label[0]], updates_count=label[1])
        for start, stop, label in segment_runs(segments, labels)
    ]


def count_update(counts: np.ndarray, absent: int, into: np.ndarray) -> None:
    """Write the counts after an update; both are int64 of one shape, and may be the same array."""
    present = [1 - (absent >> index & 1) for index in range(counts.size)]
    np.add(counts, present, out=into)


def _one_count_error(
    layout: Layout, chunk: int, segments: Sequence[Segment], absent: int
) -> StateError:  # fmt: skip
    names = [
        layout.parameters[segment.parameter].name
        for index, segment in enumerate(segments)
        if absent >> index & 1
    ]
    return StateError(
        f"page of chunk {chunk}: {', '.join(names[:4])} had no gradient in this step, others "
        "in the page had one, but this state was made by a version of LuWu that counts the "
        "updates of a page as a whole. The step was discarded. Make a new state of it with "
        "luwu export and luwu import, and continue with that"
    )
