"""A step of LuWu on this machine: workers, switch and node are processes that share its cores.

Floors are seconds of a core, or of the disk, of one part alone; the job gives how often each is
needed. No run is measured. With W workers, an extent of b bytes:

    X5  push     each worker: copy b, an end;  wire b;  switch: W ends, sum of W b, an end;  wire b;
                 node: an end. And its receipt: an end at the node, 1 + W at the switch, one at each
                 worker
    X6  update   a thread of the node, page by page, p bytes each; out of core the disk reads 3 p
                 besides, where the page does not stay in memory, and writes 3 p. Two hand-overs
    X7  pull     each worker: an end; switch: W ends and one; node: an end; where no update hands it
                 out, a thread reads b, each page from disk if it is not in memory, and a hand-over;
                 an end; wire b;  switch: 1 + W ends;  wire W b; each worker: an end, and b copied,
                 unless weights are used where they lie
         Of extents that the switch caches, the node is asked once a step, before the update, which
         hands the weights out; the switch copies b, and has W ends of all other pulls
    X8  wire     seconds of the sender's and of the receiver's link thread, by byte; none where
                 memory is shared
    X9  compute  units forward in order, then backward, by one thread of a worker
    X10  a step  as the play of all threads on the processors has it (driven/machine_play.py); not
                 shorter than work / cores, than the disk's time, or than the play on cores without
                 number

    X11  crowd   one share of X10, fitted once for all cases: effects that no single part shows, as
                 processes compete for caches, and wait for the interpreter's lock and to be woken

An *end* is a message that a process sends or receives, with all that its state machine does for it.
The protocol cores decide which process sends what and waits for what; X5 to X7 are the result. Of
several optimizer nodes each has X5 to X7 of the extents that it holds; they share cores and disk.
Source: derived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RECORD = 3
"""Weights, m and v: so many times the bytes of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFloors:
    """Seconds of a core, and of the disk, measured of each part alone."""

    cores: int
    forward_s: float
    """Seconds of one worker's forward, by itself."""
    backward_s: float
    root_ratio: float
    """Share of both outside the blocks, in [0, 1]."""
    end_s: float
    """A message at one of its ends."""
    handed_s: float
    """Work handed to a thread of the node, and its end heard of."""
    send_s_per_byte: float
    """Cost of a link's thread; 0 with shared memory."""
    receive_s_per_byte: float
    gradient_s_per_byte: float
    """A copy to where it is sent from."""
    weights_s_per_byte: float
    """A copy to the unit's own addresses."""
    sum_s_per_byte: float
    """Cost of the switch, per added byte."""
    update_s_per_byte: float
    """Cost of a node's thread for a page: kernel, checksums, requests; per byte of weights."""
    reading_s_per_byte: float
    """Cost of a node's thread for weights that are read to be sent."""
    write_s_per_byte: float = 0.0
    """Cost of the disk for pages that stay in memory."""
    mixed_s_per_byte: float = 0.0
    """Cost of the disk to read a byte and write one, as updates do."""
    pull_s_per_byte: float = 0.0
    """Cost of the disk for reads of weights."""
    flush_s: float = 0.0
    """Cost of the disk for a flush; a decided step takes three."""
    crowding: float = 0.0
    """Relative extra time of a step with all parts together (X11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineJob:
    """The transfers of a step, and its processes."""

    chunks: tuple[tuple[int, ...], ...]
    """Bytes of the weights of each chunk, by unit; the root first, which is used last."""
    extent_chunks: int = 1
    """Chunks of a unit that travel together at most."""
    workers: int
    in_place: bool = False
    """Weights are used where the node has them, in shared memory."""
    out_of_core: bool = False
    resident: tuple[tuple[int, ...], ...] = ()
    """Bitmap of the nodes at which a page stays in memory, by unit and chunk; () where none
    does."""
    cache_bytes: int = 0
    """Weights that the switch answers pulls with, at most."""
    caches_in_place: bool = False
    """They are used where the switch has them, in shared memory."""
    updates_count: int = 4
    """Threads of the node for updates, and for reads of weights."""
    reads_count: int = 2
    ahead: int = 2
    """Units that are pulled before they are used."""
    compute_threads: int = 1
    """Threads of each worker, which share its compute evenly."""
    nodes: int = 1
    """Optimizer nodes, each with as many threads."""
    replicas: int = 1
    """Nodes that hold each page."""

    @property
    def units(self) -> int:
        """How many there are."""
        return len(self.chunks)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(map(sum, self.chunks))

    def stays(self, unit: int, chunk: int, node: int = 0) -> bool:
        """True if a page is never read from disk by a node."""
        if not self.out_of_core:
            return True
        return bool(self.resident) and bool(self.resident[unit][chunk] >> node & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineStep:
    """A predicted step."""

    step_s: float
    work_s: Mapping[str, float]
    """Core seconds by kind."""
    disk_s: float
    """That the disk is busy."""
    cores: int
    crowding_s: float = 0.0
    """Extra seconds of the step (X11)."""
    spans: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Of the last step that was played, as the first worker saw it: seconds from its start, by what
    was done: compute, forward, wait, pull, push, sum, update, read, write."""
    shown_s: float = 0.0
    """The time of that step."""

    @property
    def cores_s(self) -> float:
        """Seconds of all work if no core ever waits."""
        return sum(self.work_s.values()) / self.cores

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the step: work of all cores by kind, and cores that wait."""
        found = {name: seconds / self.cores for name, seconds in self.work_s.items() if seconds}
        waiting_s = max(0.0, self.step_s - self.crowding_s - self.cores_s)
        return {**found, "waiting": waiting_s, "crowding": self.crowding_s}

    @property
    def binding(self) -> str:
        """Cores or disk, whichever is busier; `waiting` if both are idle for half of the step."""
        busy = {"cores": self.cores_s, "disk": self.disk_s}
        longest = max(busy, key=lambda name: busy[name])
        return longest if busy[longest] >= self.step_s / 2 else "waiting"


def compute_by_unit(job: MachineJob, floors: MachineFloors, seconds: float) -> list[float]:
    """Seconds of a pass by unit (X9): blocks are equal, the root is the rest."""
    if job.units == 1:
        return [seconds]
    rest = floors.root_ratio * seconds
    return [rest, *[(seconds - rest) / (job.units - 1)] * (job.units - 1)]
