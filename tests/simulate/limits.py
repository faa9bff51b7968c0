"""O5: how many payload bytes each simulated process may hold, from the limits it was given.

An upper bound that follows from the design, not a measurement: what a role may hold for each
purpose, added up. A leak, or a buffer without a bound, passes it sooner or later.
"""

from __future__ import annotations

from tests.simulate.job import Job
from tests.simulate.machines import Node, Switch
from tests.simulate.world import Process

COPIES = 2
"""A payload that has just arrived is held twice for an instant: as it came, and where it goes."""


def bytes_max(job: Job, process: Process) -> int:
    """Of a worker, a switch or a node."""
    model_bytes = sum(chunk.sum_bytes for chunk in job.layout.chunks)
    chunk_bytes = job.layout.chunk_bytes
    if isinstance(process, Switch):
        return _switch_bytes(job, process, chunk_bytes)
    if isinstance(process, Node):
        return _node_bytes(job, chunk_bytes)
    # Gradients of a backward, encoded beside them, and those of one that was given up meanwhile.
    return COPIES * 2 * model_bytes * job.backwards + chunk_bytes


def _switch_bytes(job: Job, switch: Switch, chunk_bytes: int) -> int:
    limits = switch.core.limits
    children = len(job.tree.children(switch.place))
    slots = limits.slot_bytes_max
    if limits.slots is not None:
        slots = COPIES * limits.slots.slot_count * limits.slots.slot_bytes * children
    # Every child may have a window, or one chunk, under way; so may the switch.
    windows = (children + 1) * max(limits.push_window_bytes, chunk_bytes)
    return slots + limits.copies_bytes_max + COPIES * windows + COPIES * chunk_bytes


def _node_bytes(job: Job, chunk_bytes: int) -> int:
    limits = job.node_limits
    window = max(limits.push_window_bytes, chunk_bytes)
    work = (limits.updates_max + limits.reads_max) * chunk_bytes
    return limits.sum_bytes_max + COPIES * window + COPIES * work + chunk_bytes
