"""Actions that the node's core asks of the pipeline and the store, and facts about the store.

Each action is answered by the method of `NodeCore` that its docstring names; those without one
(`RecordAttempt`, `ReplaceAttached`, `Discard`, `Spill`) are done before the next action is looked
at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luwu.protocol.actions import Drop, Note, Payload, Send
from luwu.protocol.contribution import Contribution
from luwu.protocol.epoch import NO_EPOCH, Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """Limits of a node's memory and of its work under way."""

    sum_bytes_max: int = 256 * 1024 * 1024
    """Gradients in RAM; beyond, they are spilled, or their receipts wait."""
    raw_bytes_max: int | None = None
    """Limit of contributions of single ranks among these; None: no limit of their own.

    Where they lie in memory of the ranks, this keeps a rank that is ahead from using up its own.
    """
    updates_max: int = 4
    reads_max: int = 4
    extent_chunks: int = 1
    """Chunks that travel together at most (`Layout`)."""
    push_window_bytes: int = 32 * 1024 * 1024
    """Credit of the child."""
    workers_min: int | None = None
    """The job goes on without ranks that are lost, as long as so many are left; None: it waits."""
    workers_max: int | None = None
    """Number of ranks, where the job begins without those that are not there yet; None: it waits
    for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNumber:
    """Which of how many optimizer nodes this is."""

    number: int = 0
    count: int = 1
    replicas: int = 1
    """Nodes that hold each page."""

    @property
    def is_alone(self) -> bool:
        """The job has one node, which decides alone; several are led by their switch."""
        return self.count == 1


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that could be decided, after a crash too."""

    version: int
    attempt: int
    applied: bool
    norms: tuple[float, ...]
    contributors: int
    """Bitmap of the ranks whose gradients made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """An open store, as it describes itself."""

    description: bytes
    generation: int
    attempt: int
    """Attempt of the job; at a single node already raised durably for this opening, else as
    recorded."""
    epoch: int
    job: int
    version: int | None
    """Count of decided steps; None while the initial weights are not complete."""
    applied: bool = True
    """True if the last decided step was applied."""
    norms: tuple[float, ...] = (0.0,)
    """Those of the last decided step."""
    decided_attempt: int = 0
    """The attempt under which that was made."""
    prepared: PreparedVersion | None = None
    """A version that is not decided here; whether it is, all nodes together know."""
    prepared_digests: bytes = b""
    """Of its stripes, where other nodes hold them too."""
    recorded: Epoch = NO_EPOCH
    """The epoch of the nodes, where there are several."""
    is_in_place: bool = False
    """An update overwrites the version that it is made of (P8)."""
    spare_bytes: int = 0
    """Memory for sums, beside `NodeLimits.sum_bytes_max`."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Make a store for this job; `store_opened` or `store_refused`."""

    description: bytes


@dataclass(frozen=True, slots=True)
class BeginFilling:
    """Empty the store, or make it, and go on from this version without a page; `store_opened`."""

    description: bytes
    version: int


@dataclass(frozen=True, slots=True)
class FillPage:
    """Write a page as the decided version has it; `page_filled`."""

    chunk: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class LoadPage:
    """Write initial weights and zero moments to a page; `page_loaded`."""

    chunk: int
    attempt: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class KeepPiece:
    """Put aside a piece of what a rank keeps beside a step; `piece_kept`."""

    step: int
    attempt: int
    ranks: int
    """Bitmap of the one rank."""
    piece: int
    pieces: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class ReplaceAttached:
    """Make it durable that a rank has replaced what it attached late to the decided version."""

    version: int
    rank: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Make the attempt, and the epoch of the nodes, durable before anything is sent under them."""

    attempt: int
    epoch: Epoch | None = None
    """None: as it is recorded."""


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget all pages written under attempts older than this."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Spill:
    """A payload is over the budget: move it to the spill file; it stays valid."""

    payload: Payload
    is_raw: bool
    """One rank's, which may wait for others: then a process that shares it needs it back."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Add a part's contributions in this order, in float32, then add that sum to the total.

    Two sums, so that it makes no difference where the part was summed; measure it; `folded`.
    """

    extent: int
    step: int
    attempt: int
    part: int
    total: Contribution | None
    """Sum of the parts before; None if there are none."""
    contributions: tuple[Contribution, ...]
    absent: int
    """Segments of the extent that have a gradient neither in the total nor in this part."""
    norm_types: tuple[float, ...]
    """Norms to take of the new total, beside the 2-norm. Without contributions it is the old one:
    only these are taken."""


BlockNorms = Mapping[float, tuple[float, ...]]
"""Norm type -> a number for each block of a total (squares for 2; see `pipeline.block_norms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Read the pages, add, divide, update, write their other sides; `updated`, then `written`."""

    extent: int
    step: int
    attempt: int
    contributions: tuple[Contribution, ...]
    """Gradients to add in this order, in float32."""
    absent: int
    """Bitmap of the extent's segments for which no rank has a gradient: they stay as they are."""
    divisor: float
    """Total weight: the sum is divided by float32(divisor), once."""
    norms: tuple[float, ...]
    """As in the verdict, by which a step is clipped; empty before it: the step is not clipped."""
    hyper: bytes
    """Hyper-parameters of the step, as rank 0 sent them."""
    publish: bool
    """A child waits for the weights: hand them out with `updated`."""
    is_provisional: bool = False
    """It may be followed by another one of this extent: its weights may not be used yet."""
    is_preview: bool = False
    """Hand the weights out, and leave the pages as they are; `previewed`."""
    others: tuple[Update, ...] = ()
    """The other extents of its sheet, updated with it: `updated`, or `previewed`, for each of them
    before it."""


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """Read pages' weights in the wire dtype; `weights_read`."""

    extent: int
    step: int
    """The step they are for."""
    version: int | None
    """The version of the pages to read; None: the decided one, whichever that is by then."""
    attempt: int
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopyPage:
    """Read a page of the decided version, for another node; `page_copied`."""

    chunk: int
    step: int
    """The version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Make a version durable as a whole, with its record; `prepared`."""

    version: int
    attempt: int
    epoch: int
    contributors: int
    applied: bool
    """False: no page changes side."""
    norms: tuple[float, ...]
    hyper: bytes
    kept_attempt: int | None
    """Under which the pieces of what workers keep beside it were put aside; None: nothing is."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Record the decision; `decided`."""

    version: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This node cannot be one of its job, for good: end with this text and error code."""

    text: str
    code: str = "E500"


@dataclass(frozen=True, slots=True)
class PinVersion:
    """Pin the decided version for a reader; `pinned`."""

    reader: int


@dataclass(frozen=True, slots=True)
class ReadField:
    """Read one field of a page of the version that is pinned for a reader; `field_read`."""

    reader: int
    chunk: int
    field: str
    dtype: str
    """Weights are rounded to it."""


@dataclass(frozen=True, slots=True)
class Unpin:
    """The reader is gone."""

    reader: int


Action = (
    Send | Drop | Note | OpenStore | LoadPage | RecordAttempt | Discard | Spill | Fold | Update
    | ReadWeights | Prepare | Decide | KeepPiece | PinVersion | ReadField | Unpin
    | GiveUp | BeginFilling | FillPage | CopyPage | ReplaceAttached
)  # fmt: skip
