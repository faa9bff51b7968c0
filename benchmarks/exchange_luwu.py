"""LuWu in the exchange benchmark: node and switch as `luwu up` starts them, workers without torch
modules, which push, commit and pull through their NIC as training does in streaming order.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks.exchange_model import Job, hyper_bytes, octets
from benchmarks.exchange_part import Part
from benchmarks.flat_push import push_flat
from luwu.base.closing import Closing
from luwu.base.config import resolve
from luwu.base.errors import ConfigError
from luwu.join.open import open_nic
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import serve
from luwu.launch.sizes import decide_sizes
from luwu.launch.supervisor import Supervisor
from luwu.nic.shell import Nic
from luwu.nic.threads import Handle

MIB = 1024 * 1024
BUDGET_BYTES_PER_PARAM = 48
"""Two copies of 12 bytes of state, a sum, raw gradients, and room: all stays in RAM."""


def missing(transport: str) -> str | None:
    """Why a transport cannot be measured; None if it can."""
    try:
        resolve(flags={"transport": transport}, environ={})
    except ConfigError as exc:
        return str(exc)
    return None


class Network(Closing):
    """Node, and switch if asked for, of one job; stopped at the end."""

    def __init__(
        self, job: Job, directory: Path, *, transport: str, switch: bool, chunk_bytes: int | None
    ) -> None:
        budget_bytes = BUDGET_BYTES_PER_PARAM * job.elems + 1024 * MIB
        flags = {
            "workers": str(job.workers),
            "transport": transport,
            "no_switch": str(not switch).lower(),
            "durability": "none",
            "memory_budget": f"{budget_bytes}B",
            "chunk": "auto" if chunk_bytes is None else f"{chunk_bytes}B",
        }
        config = resolve(flags=flags, environ={}).config
        # Processes of a run are marked with its directory's name, so it must be this arm's alone.
        run = RunDirectory.create(directory / directory.name)
        log = self._log = (directory / "network.log").open("a")
        self.supervisor = Supervisor(run, Console(log), restarts_max=0)
        try:
            sizes = decide_sizes(config, None)
            serve(self.supervisor, config, state=None, sizes=sizes, say=Console(log).say)
        except BaseException:
            self.close()
            raise
        self.chunk_bytes = sizes.chunk_bytes
        self.connect_file = run.connect_file

    def close(self) -> None:
        self.supervisor.close()
        self._log.close()


class LuwuWorker(Part):
    """One worker: gradients in private memory, weights where the NIC has them or puts them."""

    is_exact = True

    def __init__(self, job: Job, rank: int, *, connect: str) -> None:
        super().__init__(job, rank)
        os.environ["LUWU_CONNECT"] = connect
        self._units = range(len(job.unit_elems))
        self._gradients = [octets(job.gradient(rank, unit)) for unit in self._units]
        self._own: dict[int, torch.Tensor] = {}
        self._pulls: list[Handle] = []
        self._pushes: list[Handle] = []
        self._hyper = hyper_bytes()
        self._nic: Nic = open_nic(rank, job.workers)
        description = job.description(self._nic.chunk_bytes, self._nic.extent_chunks)
        self._layout = description.layout
        joined = self._nic.join(description)
        if rank == 0:
            self._nic.load(self._first_chunks())
        self._number = joined.step
        self._pull_all()

    def step(self) -> None:
        """Push in the order of the backward, commit, pull in the order of the next forward.

        The gradient is copied from private memory to where the transport sends from, as training
        does; a unit's old weights are given back when its gradient is pushed.
        """
        nic, number = self._nic, self._number
        nic.begin(number, self._hyper)
        for unit in reversed(self._units):
            nic.forget(self._pulls[unit])
            self._pushes += push_flat(
                nic, self._layout, self._gradients[unit], self.job.dtype, step=number, unit=unit,
                last=True,
            )  # fmt: skip
        self._step = nic.commit(number, 1, self._hyper)
        self._number += 1
        self._pull_all()

    def finish_step(self) -> None:
        for handle in self._pushes:
            self._nic.wait(handle)
        self._pushes.clear()
        applied, _ = self._step.decision()
        assert applied

    def weights(self, unit: int) -> torch.Tensor:
        shared = self._pulls[unit].shared
        if shared is None:
            return self._own[unit]
        memory = (ctypes.c_char * shared.nbytes).from_address(shared.address)
        return torch.frombuffer(memory, dtype=self.job.torch_dtype)

    def leave(self) -> None:
        for handle in self._pulls:
            self._nic.forget(handle)
        self._nic.leave()
        self._nic.close()

    def _pull_all(self) -> None:
        self._pulls = [
            self._nic.pull(self._number, 0, unit, partial(self._memory, unit), in_place=True)
            for unit in self._units
        ]
        for handle in self._pulls:
            self._nic.wait(handle)

    def _memory(self, unit: int) -> memoryview:
        """Where to put weights that cannot be used in place."""
        if unit not in self._own:
            self._own[unit] = torch.empty(self.job.unit_elems[unit], dtype=self.job.torch_dtype)
        return octets(self._own[unit])

    def _first_chunks(self) -> Iterator[tuple[int, memoryview]]:
        for unit in self._units:
            values = self.job.initial(unit)
            for index in self._layout.unit_chunks[unit]:
                chunk = self._layout.chunks[index]
                yield index, octets(values[chunk.start : chunk.start + chunk.elems])
