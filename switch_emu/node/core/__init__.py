"""The optimizer node as a pure state machine: `NodeCore`."""

from switch_emu.node.core.node import NodeCore

__all__ = ["NodeCore"]
