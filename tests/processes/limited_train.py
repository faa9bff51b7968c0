"""Train as `workers.train` does, with a limit on memory from the moment the model is made.

    python -m tests.processes.limited_train HEADROOM_BYTES OPTIONS OF workers.train ...

What the process has allocated by then (imports, data, sockets, threads) counts as used; the model
and its training get HEADROOM_BYTES more, of anonymous memory (RLIMIT_DATA: heap, private mappings,
and 8 MiB for each thread's stack, touched or not). The kernel refuses what goes beyond, and the
process says so and ends with code 1.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

import torch
import zmq

from tests.own_memory import memory_bytes
from workers import train
from workers.arms import Arm
from workers.gpt import GPT, GPTConfig
from workers.options import Options


def main(arguments: Sequence[str]) -> int:
    """Train under the limit; the exit code."""
    _, most_bytes = resource.getrlimit(resource.RLIMIT_DATA)

    def make_arm(options: Options, **more: Any) -> Arm:
        arm = train.make_arm(options, **more)  # connected: its threads are there
        warm_up()
        used_bytes = memory_bytes("VmData")
        assert used_bytes, "this kernel tells no VmData"
        resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + int(arguments[0]), most_bytes))
        return arm

    try:
        return train.main(arguments[1:], make_arm)
    except (MemoryError, RuntimeError) as error:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))  # to end well, that is
        print(f"beyond the limit: {error!r}", file=sys.stderr)
        return 1


def warm_up() -> None:
    """Let torch import what it needs for a first tensor on the meta device and a first backward,
    and pyzmq start the thread it needs for a first send without a copy."""
    with torch.device("meta"):
        GPT(GPTConfig(layers=1, width=8, heads=1, context=2))
    torch.nn.Linear(2, 2)(torch.zeros(2, 2)).sum().backward()
    with zmq.Context() as context, context.socket(zmq.PAIR) as to, context.socket(zmq.PAIR) as at:
        at.bind("inproc://warm-up")
        to.connect("inproc://warm-up")
        to.send(bytes(zmq.COPY_THRESHOLD), copy=False)
        at.recv()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
