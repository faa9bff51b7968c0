"""A whole cluster in one process, for tests: `luwu.launch.local_cluster`."""

from __future__ import annotations

from luwu.launch.local_cluster import LocalCluster

__all__ = ["LocalCluster"]
