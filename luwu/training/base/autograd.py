"""The state of autograd in this thread."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """True if autograd is running backward in this thread."""
    return torch._C._current_graph_task_id() != -1
