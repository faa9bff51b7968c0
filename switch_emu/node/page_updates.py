"""The update of neighbouring pages: as the pipeline makes it, and as the log of sums has it made
again (`redo_of`).

What an update makes depends on the record, the sum and a `Cause`; on nothing else (I3).
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from luwu.base.errors import StateError
from luwu.layout import Layout, Share
from luwu.wire.description import Description, parse_description
from luwu.wire.hyper import StepHyper, decode_hyper
from luwu.wire.norms import clip_factor
from luwu.wire.stored import UPDATES, kept_fields
from switch_emu.node.extent_pages import PageGroup, Pages, UpdateCounts, extent_pages, update_runs
from switch_emu.node.kernels import UpdateCall, UpdateKernel
from switch_emu.node.kernels.interface import Contributions, Made
from switch_emu.node.kernels.make import make_kernel, make_whole_kernel
from switch_emu.node.scratch import record_views
from switch_emu.store import DecidedStep, StoreConfig
from switch_emu.store.sums import Redo
from switch_emu.store.views import RecordRows, one_record

KERNEL_KEY: Final = "kernel"
"""Key of `DecidedStep.extra`: name and version of the update that made the step."""
ARITHMETIC_KEY: Final = "arithmetic"
"""Key of `DecidedStep.extra`: what its bits depend on; by another one it is not made again."""
_DIVISOR: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """All that an update of an extent's pages depends on, beside records and sum."""

    version: int
    """The version that it makes."""
    hyper: StepHyper
    norms: tuple[float, ...]
    """The step's norms, as far as they are known."""
    divisor: float
    absent: int
    """Bitmap of the extent's segments that have no gradient."""


class PageUpdates:
    """The pages of a node by extent, and how they are updated. Thread-safe."""

    def __init__(
        self, config: StoreConfig, share: Share, norm_type: float, kernels: Kernels,
        pages_together: int = 1,
    ) -> None:  # fmt: skip
        """`pages_together`: the most that are worked on at once."""
        self._config, self._share, self._layout = config, share, share.layout
        self._norm_type, self._kernels = norm_type, kernels
        self._pages_together = pages_together
        self._of = cache(self._groups)
        self.whole_turn = threading.Lock()
        """One page at a time is updated as a whole: the plan has memory for one."""

    def of(self, extent: int, absent: int = 0) -> tuple[Pages, ...]:
        """The pages of an extent, in groups, in order; each alone if some of them have only
        segments that are `absent`, a bitmap."""
        found = self._of(extent, self._pages_together)
        if absent and any(any(each.group.is_idle(absent)) for each in found):
            found = self._of(extent, 1)
        return found

    def _groups(self, extent: int, pages_max: int) -> tuple[Pages, ...]:
        groups = extent_pages(self._share, extent, self._alike, pages_max)
        return tuple(map(self._pages_in, groups))

    def _alike(self, chunk: int) -> object:
        """Equal for chunks whose pages may be worked on together."""
        if self._layout.chunks[chunk].form.whole:
            return "whole", chunk
        return self._config.kind(self._share.page(chunk)).record_bytes

    def _pages_in(self, group: PageGroup) -> Pages:
        kinds = [self._config.kind(group.number + index) for index in range(group.count)]
        fields = [field for kind in kinds for field in kind.fields if field.name == UPDATES]
        counts = None
        if fields:
            width = (kinds[0].record_bytes - kinds[0].range(UPDATES)[0]) // 8
            counts = UpdateCounts(self._layout, group, [field.elems for field in fields], width)
        segments = tuple(segment for page in group.segments for segment in page)
        kernel, shape = self._kernels.made.kernel, None
        if self._layout.chunks[group.chunks[0]].form.whole:
            assert self._kernels.whole is not None
            kernel = self._kernels.whole
            shape = self._layout.parameters[segments[0].parameter].shape
        return Pages(group, kinds[0], counts, segments, kernel, shape)

    def scale(self, hyper: StepHyper, norms: Sequence[float]) -> float:
        """The factor by which a step's clips scale its gradient."""
        return clip_factor(hyper.all_clips(self._norm_type), norms)

    def apply(
        self, pages: Pages, cause: Cause, contributions: Contributions, found: RecordRows,
        target: RecordRows, *, wire: tuple[memoryview, str] | None = None, measure: bool = False,
    ) -> tuple[float, ...]:  # fmt: skip
        """Update the records `found` to `target`, which may be the same; `wire`, `measure` and the
        result are those of `UpdateKernel.update`."""
        kernel, counts = pages.kernel, pages.counts
        assert counts is not None, "frozen pages are not updated"
        absent = pages.group.absent(cause.absent)
        old, old_counts = record_views(pages.kind, found, kernel.state_fields)
        new, new_counts = old, old_counts
        if target is not found:
            new, new_counts = record_views(pages.kind, target, kernel.state_fields)
        runs = update_runs(
            self._layout, pages.segments, cause.hyper, counts.by_segment(old_counts, absent),
            absent, version=cause.version if old.is_narrow else None,
        )  # fmt: skip
        with contextlib.nullcontext() if pages.shape is None else self.whole_turn:
            squares = kernel.update(
                UpdateCall(
                    contributions=contributions,
                    old=old,
                    new=new,
                    runs=runs,
                    divisor=cause.divisor,
                    scale=self.scale(cause.hyper, cause.norms),
                    wire=wire,
                    measure=measure,
                    shape=pages.shape,
                )
            )
        counts.count(old_counts, absent, new_counts)
        return squares


class Kernels(NamedTuple):
    """The kernels of a job."""

    made: Made
    """The kernel of what is updated element by element, and why it is this version."""
    whole: UpdateKernel | None
    """The kernel of parameters that are updated as a whole, if there are any."""

    @classmethod
    def of(cls, description: Description) -> Kernels:
        """Those of a job. Raises ConfigError if the node has no such optimizer."""
        job, whole = description, None
        if any(chunk.form.whole for chunk in job.layout.chunks):
            kept = kept_fields(job.optimizer, job.state_fields, whole=True)
            whole = make_whole_kernel(job.optimizer, kept)
        return cls(make_kernel(job.optimizer, job.state_fields, cache=None), whole)

    def enter_thread(self) -> None:
        """To be called once by each thread that updates pages."""
        for kernel in (self.made.kernel, self.whole):
            if kernel is not None:
                kernel.enter_thread()

    def said(self) -> Mapping[str, str]:
        """The values of `KERNEL_KEY` and `ARITHMETIC_KEY` in the steps that they make."""
        kernel = self.made.kernel
        return {KERNEL_KEY: f"{kernel.name} {kernel.version}", ARITHMETIC_KEY: self._arithmetic()}

    def _arithmetic(self) -> str:
        names = [kernel.name for kernel in (self.made.kernel, self.whole) if kernel is not None]
        return f"{' and '.join(names)}, torch {_torch_version()}"


@cache
def _torch_version() -> str:
    """That of the torch that is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    return "unknown" if found is None else found[1]


def note_bytes(layout: Layout) -> int:
    """The most bytes that a note of `notes_of` has."""
    most = max(layout.segments_count(chunk.index) for chunk in layout.chunks)
    return _DIVISOR.size + -(-most // 8)


def notes_of(pages: Pages, cause: Cause) -> list[bytes]:
    """For each page what its update depends on beside the step: divisor, and absent segments."""
    by_page = zip(pages.group.absent_by_page(cause.absent), pages.group.segments, strict=True)
    return [
        _DIVISOR.pack(cause.divisor) + absent.to_bytes(-(-len(segments) // 8), "little")
        for absent, segments in by_page
    ]


def redo_of(config: StoreConfig, number: int = 0) -> Redo:
    """The function that makes the updates of the store of node `number` again; its kernels are made
    when first needed.

    Raises ConfigError if the node has no such optimizer, StateError for steps that were made by
    another arithmetic.
    """
    made: list[tuple[PageUpdates, Kernels, Sequence[int]]] = []
    lock, threads = threading.Lock(), threading.local()

    def redo(
        page: int, record: memoryview, data: memoryview, dtype: str, step: DecidedStep, note: bytes
    ) -> None:  # fmt: skip
        with lock:
            if not made:
                job = parse_description(config.description, 1)  # an extent for each page
                share = Share.with_pages(job.layout, number, config.page_count)
                assert share is not None, "the store is not that of this node"
                kernels = Kernels.of(job)
                updates = PageUpdates(config, share, job.norm_type, kernels)
                made.append((updates, kernels, share.chunks()))
        updates, kernels, chunks = made[0]
        if not hasattr(threads, "is_entered"):
            kernels.enter_thread()
            threads.is_entered = True
        _check_arithmetic(step, kernels)
        (divisor,) = _DIVISOR.unpack_from(note)
        cause = Cause(
            version=step.version, hyper=decode_hyper(step.hyper), norms=step.norms, divisor=divisor,
            absent=int.from_bytes(note[_DIVISOR.size :], "little"),
        )  # fmt: skip
        (pages,) = updates.of(chunks[page])
        rows = one_record(record)
        updates.apply(pages, cause, [(data, dtype)], rows, rows)

    return redo


def _check_arithmetic(step: DecidedStep, kernels: Kernels) -> None:
    found, ours = step.extra.get(ARITHMETIC_KEY), kernels.said()[ARITHMETIC_KEY]
    if found != ours:
        raise StateError(
            f"step {step.version} was made by {found}, and its sum is to be added again by {ours}, "
            "which may give other bits. Start the job once with what it was made by, and end it "
            "with Ctrl-C: then its pages are whole"
        )
