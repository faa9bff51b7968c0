"""The optimizer node as a pure state machine: `NodeCore`, which owns these parts.

node.py             NodeCore: events in, actions out; the course of a step; what is sent to whom
actions.py          what is asked of the pipeline and the store

shard.py            the chunks that this node owns, from the job's description
state.py            the decided version, the one that is prepared, and the attempt, on disk
whole_pages.py      initial weights, what comes before them, and the pages of a lost node
membership.py       the child joins and leaves

step.py             the undecided steps, their sums, and the bytes of gradients in RAM
gathering.py        gradients, Begin and Commit, into the sums; then updates of pages
attachments.py      what ranks attach to a step
serving.py          weights that are pulled

deciding.py         a single node, which decides alone; one of several, which their switch leads
readers.py          readers of a decided version, while training goes on

with_switch.py      a node and its own switch (`--no-switch`), and what passes between them
"""

from switch_emu.node.core.node import NodeCore

__all__ = ["NodeCore"]
