"""The worker's side of the protocol, pure: `NicCore`, and `ReaderCore` for readers."""

from luwu.nic.core.worker import NicCore

__all__ = ["NicCore"]
