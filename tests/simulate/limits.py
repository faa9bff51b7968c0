"""O5: how many payload bytes each simulated process may hold, from the limits it was given.

An upper bound that follows from the design, not a measurement: what a role may hold for each
purpose, added up. A leak, or a buffer without a bound, passes it sooner or later.
"""

from __future__ import annotations

from tests.simulate.job import Job
from tests.simulate.machines import Node, Switch
from tests.simulate.no_switch import NodeOfWorkers
from tests.simulate.world import Process

COPIES = 2
"""A payload that has just arrived is held twice for an instant: as it came, and where it goes."""


def bytes_max(job: Job, process: Process) -> int:
    """Of a worker, a switch or a node."""
    model_bytes = sum(chunk.sum_bytes for chunk in job.layout.chunks)
    extent_bytes = _extent_bytes(job)
    if isinstance(process, Switch):
        return _switch_bytes(job, len(job.tree.children(process.place)))
    if isinstance(process, NodeOfWorkers):
        return _node_bytes(job, extent_bytes) + _switch_bytes(job, job.world_size)
    if isinstance(process, Node):
        return _node_bytes(job, extent_bytes)
    # Gradients of a backward, encoded beside them, and those of one that was given up meanwhile.
    return COPIES * 2 * model_bytes * job.backwards + extent_bytes


def _extent_bytes(job: Job) -> int:
    """Of the largest message."""
    return max(job.layout.chunk_bytes, *(each.sum_bytes for each in job.layout.extents))


def _switch_bytes(job: Job, children: int) -> int:
    limits, extent_bytes = job.limits, _extent_bytes(job)
    slots = limits.slot_bytes_max
    if limits.slots is not None:
        slots = COPIES * limits.slots.slot_count * limits.slots.slot_bytes * children
    # Every child may have a window, or one extent, under way; so may the switch.
    windows = (children + 1) * max(limits.push_window_bytes, extent_bytes)
    weights = limits.copies_bytes_max + limits.cache_bytes_max
    if limits.cache_bytes_max:  # what is copied to the cache while newer weights come
        weights += sum(chunk.sum_bytes for chunk in job.layout.chunks)
    return slots + weights + COPIES * windows + COPIES * extent_bytes


def _node_bytes(job: Job, extent_bytes: int) -> int:
    limits = job.node_limits
    window = max(limits.push_window_bytes, extent_bytes)
    work = (limits.updates_max + limits.reads_max) * extent_bytes
    return limits.sum_bytes_max + COPIES * window + COPIES * work + extent_bytes
