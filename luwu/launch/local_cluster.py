"""A whole cluster in one process: switch and nodes in threads, workers as threads of the test.

Everything is real but the processes: the cores, the shells, the transports (tcp, ipc, or memory of
this process), the store and its files. Made for tests and debuggers; a test that must kill
something uses `luwu.testing.cluster`.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from luwu.base.clock import SYSTEM_CLOCK, new_incarnation
from luwu.base.closing import Closing
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.events import Recorder
from luwu.base.job_spec import common
from luwu.base.links import LinkPair, Links
from luwu.base.quantities import parse_bytes
from luwu.base.seeds import derive
from luwu.base.tree import NODE, Place, Tree, one_switch
from luwu.launch.sizes import decide_sizes
from luwu.nic.reader import StateReader
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.transport.inprocess import InProcessNetwork
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from switch_emu.links.linked import link_rows, linked
from switch_emu.node.pages import weights_digest
from switch_emu.node.process import make_node_shell
from switch_emu.node.shell import NodeShell
from switch_emu.node.spec import NodeSpec
from switch_emu.store.striped import node_directory
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.parents import parent_names
from switch_emu.switch.shell import SwitchShell

if TYPE_CHECKING:
    import torch

    from luwu.training.script.session import Session

ResultT = TypeVar("ResultT")

_OF_NIC = ("aggregate", "prefetch_units", "reshard_after_forward")
_ENDPOINTS = {"tcp": "tcp://127.0.0.1:0", "ipc": "ipc://auto", "shm": "shm://auto"}


class LocalCluster(Closing):
    """One job's switch and nodes in threads; `nic` gives each worker thread its NIC."""

    errors: list[BaseException]
    """Errors that switches and nodes have ended with so far."""
    endpoints: dict[str, str]
    """The endpoints of the node and of each switch, by `node` and the switches' names."""

    def __init__(
        self, *, transport: str = "inproc", arena_bytes: int = 8 * 1024 * 1024,
        links: Links | None = None, link_seed: int = 0, tree: Tree | None = None,
        switch_limits: SwitchLimits | None = None,
        on_error: Callable[[BaseException], None] = lambda error: None,
        printed: IO[str] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """`transport`: inproc, tcp, ipc or shm; `arena_bytes`: of each worker, with shm; `links`:
        emulated ones, whose random numbers derive from `link_seed`; `tree`: switches between
        workers and node, one above all workers unless given; `on_error`: gets what ended a thread
        of switch or node, in that thread; `printed`: gets the nodes' warnings; `more`: fields of
        `NodeSpec` (`world_size`, `state`, `memory_budget_bytes` and `summary` at least), and those
        of `NicSettings` that it does not have."""
        of_nic = {each: more.pop(each) for each in _OF_NIC if each in more}
        links = links or Links()
        at_node = links.node if more.get("has_switch", True) else links.worker
        self._link_seed, self._worker_retry = link_seed, links.worker.retry()
        self.job = SYSTEM_CLOCK.now_ns()
        asked: dict[str, Any] = {
            "chunk_bytes": 16 * 1024, "grace_s": 60.0, "durability": "process", "listen": "",
            "job": self.job, "link": at_node, "link_seed": derive(link_seed, "links", "node"),
            "arena_bytes": arena_bytes if transport == "shm" else 0,
            "groups": () if tree is None else tree.groups,
        }  # fmt: skip
        self.spec = NodeSpec(**asked | more)
        self.world_size, self._transport_name = self.spec.world_size, transport
        self._network = InProcessNetwork()
        self.errors = []
        self._on_error, self._printed = on_error, printed
        self._stopping = threading.Event()
        self._nics: list[Nic] = []
        self._nic_settings = NicSettings(**common(NicSettings, self.spec) | of_nic)
        self._transports: list[Transport] = []
        self.endpoints = {}
        self._threads: list[threading.Thread] = []
        self.switches: dict[str, SwitchShell] = {}
        self._tree = (tree or one_switch(self.world_size)) if self.spec.has_switch else Tree(())
        try:
            numbers = range(self.spec.optimizer_nodes)
            self.nodes = [self._add_node(number, at_node) for number in numbers]
            """By number."""
            self._nodes = tuple(self.endpoints)
            """Their names, by number."""
            for place in self._tree:
                self._add_switch(place, links, switch_limits)
        except BaseException:
            for opened in self._transports:
                opened.close()
            raise
        self.node: NodeShell = self.nodes[0]
        for thread in self._threads:
            thread.start()

    def _add_node(self, number: int, link: LinkPair) -> NodeShell:
        """Make an optimizer node, which listens; its thread is not started yet."""
        state, name = self.spec.state, NODE if number == 0 else f"{NODE}-{number}"
        if state is not None:
            state = node_directory(state, number, self.spec.optimizer_nodes)
        spec = replace(self.spec, number=number, state=state)
        transport = self._transport(spec.plan().shared_bytes, link, name)
        self.endpoints[name] = self._listen(transport, name)
        recorder = Recorder(role=name, printed=self._printed, least="WARNING")
        shell = make_node_shell(spec, transport, recorder)
        self._threads.append(self._thread(name, shell))
        return shell

    def _add_switch(self, place: Place, links: Links, limits: SwitchLimits | None) -> None:
        """Make a switch, whose parent listens already; its thread is not started yet."""
        children = self._tree.children(place)
        limits = limits or self._switch_limits(len(children))
        link = links.below(self._tree.roles_below(place), place.process)
        arena_bytes = self.spec.arena_bytes
        if arena_bytes:  # what is cached is sent from there
            arena_bytes += limits.cache_bytes_max
        transport = self._transport(arena_bytes, link, place.process)
        self.endpoints[place.name] = self._listen(transport, place.process)
        above = self._nodes if place.parent == NODE else (place.parent,)
        for name, parent in zip(parent_names(len(above)), above, strict=True):
            transport.dial(name, self.endpoints[parent])
        core = SwitchCore(
            job=self.job,
            incarnation=new_incarnation(),
            children=children,
            rank=self._tree.index(place),
            limits=replace(limits, extent_chunks=self.spec.extent_chunks),
            retry=(links.node if place.parent == NODE else links.switch).retry(),
            parents_count=len(above),
            replicas=self.spec.replicas,
        )
        recorder = Recorder(role="switch", printed=None)
        shell = self.switches[place.name] = SwitchShell(
            transport, core, recorder, shares_memory=bool(arena_bytes)
        )
        self._threads.append(self._thread(place.process, shell))

    def nic(self, rank: int) -> Nic:
        """The NIC of one worker. Raises LuwuError if the cluster was closed."""
        transport = self._transport(self.spec.arena_bytes)
        if self._stopping.is_set():  # `close` may have missed it
            transport.close()
            raise LuwuError(f"worker {rank} comes too late: its cluster was closed")
        nic = Nic(
            transport,
            WorkerIdentity(job=self.job, rank=rank, world_size=self.world_size),
            self._nic_settings,
            endpoint=self._endpoint(rank),
            grace_s=self.spec.grace_s,
            make_reader=self.reader,
            retry=self._worker_retry,
        )
        self._nics.append(nic)
        return nic

    def reader(self) -> StateReader:
        """A reader of this job, not open yet; the caller closes it, and its transport with it."""
        return StateReader(
            self._open(0), endpoint=self._endpoint(), job=self.job, grace_s=self.spec.grace_s
        )

    @property
    def switch(self) -> SwitchShell:
        """The one below the node."""
        return self.switches[self._tree.root.name]

    def _endpoint(self, rank: int | None = None) -> str:
        """The endpoint of a rank; without one, the one that all ranks have."""
        if not self._tree.places:
            return self.endpoints[NODE]
        place = self._tree.root if rank is None else self._tree.leaf_of(rank)
        return self.endpoints[place.name]

    def run(self, worker: Callable[[Nic], ResultT]) -> Sequence[ResultT]:
        """Run `worker(nic)` in a thread for each rank; their results, or the first failure."""

        def work(rank: int) -> ResultT:
            nic = self.nic(rank)
            result = worker(nic)
            nic.leave()
            nic.close()  # switch and node end when all have
            return result

        return self.run_ranks(work)

    def run_ranks(self, work: Callable[[int], ResultT]) -> Sequence[ResultT]:
        """The same for `work(rank)`, which takes a NIC and leaves, or does not."""
        results: list[Any] = [None] * self.world_size
        failures: list[BaseException] = []

        def run_one(rank: int) -> None:
            try:
                results[rank] = work(rank)
            except BaseException as exc:
                failures.append(exc)

        threads = [
            threading.Thread(target=run_one, args=(rank,), name=f"worker-{rank}", daemon=True)
            for rank in range(self.world_size)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(timeout=0.05)
            if failures or self.errors:
                break
        for error in (*self.errors, *failures):
            raise error
        return results

    def wait_until_served(self) -> None:
        """Return when switch and node have ended by themselves: every worker has left."""
        for thread in self._threads:
            thread.join()

    def links(self) -> list[dict[str, Any]]:
        """Traffic of emulated links; see `switch_emu.links.linked`."""
        if not self.spec.has_switch:
            return link_rows(self.node.transport, "worker", self.node.machine.name_of)
        return [
            *link_rows(self.switch.transport, "worker", self.switch.machine.name_of),
            *link_rows(self.node.transport, "node", self.node.machine.name_of),
        ]

    def weights_digest(self) -> str:
        """Digest of the decided weights of the only node."""
        assert self.node.store is not None
        assert self.node.description is not None
        return weights_digest(self.node.store, self.node.description.layout)

    def close(self) -> None:
        """Stop everything and wait for it."""
        self._stopping.set()
        for nic in self._nics:
            nic.close()
        for transport in self._transports:
            transport.wake()
        for thread in self._threads:
            thread.join()
        for node in self.nodes:
            node.close()
        for transport in self._transports:
            transport.close()

    def _transport(
        self, arena_bytes: int, link: LinkPair | None = None, role: str = ""
    ) -> Transport:
        seed = derive(self._link_seed, "links", role)
        transport = linked(self._open(arena_bytes), link, seed=seed)
        self._transports.append(transport)
        return transport

    def _open(self, arena_bytes: int) -> Transport:
        if self._transport_name == "inproc":
            return self._network.transport()
        return open_transport(_ENDPOINTS[self._transport_name], arena_bytes=arena_bytes)

    def _switch_limits(self, children_count: int) -> SwitchLimits:
        spec = self.spec
        if not spec.arena_bytes:
            return SwitchLimits()
        return SwitchLimits().in_arenas(spec.arena_bytes, children_count, spec.extent_bytes)

    def _listen(self, transport: Transport, name: str) -> str:
        return transport.listen(_ENDPOINTS.get(self._transport_name, f"inproc://{name}"))

    def _thread(self, name: str, shell: NodeShell | SwitchShell) -> threading.Thread:
        def serve() -> None:
            try:
                if isinstance(shell, NodeShell):
                    shell.open_existing()
                is_over = shell.run(self._stopping.is_set)
                if is_over and isinstance(shell, SwitchShell):
                    shell.transport.close()  # as its process would: the node waits for that
            except BaseException as exc:
                if isinstance(exc, LuwuError):  # as its process would: the others see it leave
                    shell.transport.close()
                if self.spec.replicas == 1 or not name.startswith(NODE):
                    self.errors.append(exc)
                self._on_error(exc)

        return threading.Thread(target=serve, name=name, daemon=True)


_running: list[LocalCluster] = []


def init_local(
    state: str | Path | None = None, *, memory_budget: str | int | None = None,
    device: torch.device | str | None = None,
) -> Session:  # fmt: skip
    """Begin a job of this process alone, in place of `luwu.init`.

    Switch and node run in threads of this process; no process is started and no port is opened. For
    a REPL, a notebook or a debugger. `luwu.finish()` ends the job; then another may begin.

    Args:
        state: Directory of the training state, which the job resumes if it exists. By default the
            state is in RAM and lost at the end.
        memory_budget: Memory of the node, in bytes or as text such as `"256MiB"`; by default half
            of the free memory.
        device: Device to compute on; by default the GPU if there is one, else the CPU.

    Returns:
        The session, which scripts rarely need.

    Raises:
        ConfigError: If another job of this process is running, or an argument cannot work.
        StateError: If the state directory is damaged.

    Examples:
        >>> session = luwu.init_local("my-state", memory_budget="64MiB")
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> for step in range(optimizer.next_step, 3):
        ...     model(torch.ones(8, 4)).square().mean().backward()
        ...     result = optimizer.step()
        ...     optimizer.zero_grad()
        >>> luwu.finish()  # the next init_local("my-state") goes on with step 3
    """
    from luwu.training.script import run

    if run.is_running():
        raise ConfigError("a job of this process runs already; call luwu.finish() first")
    close()
    if isinstance(memory_budget, str):
        memory_budget = parse_bytes(memory_budget, name="memory_budget")
    path = None if state is None else Path(state)
    sizes = decide_sizes(RunConfig(workers=1, memory_budget=memory_budget), path)
    cluster = LocalCluster(
        world_size=1, state=path, memory_budget_bytes=sizes.memory_budget_bytes,
        chunk_bytes=sizes.chunk_bytes, extent_chunks=sizes.extent_chunks, resume=True,
        summary=Path(tempfile.gettempdir()), on_error=_say, printed=sys.stderr,
    )  # fmt: skip
    try:
        session = run.init(nic=cluster.nic(0), device=device)
    except BaseException:
        cluster.close()
        raise
    _running.append(cluster)
    run.when_finished(close)
    return session


def close() -> None:
    """Stop what is left of a job that is over, or that was never ended."""
    while _running:
        _running.pop().close()


@atexit.register
def _end() -> None:
    """A script that ends without luwu.finish() has its last step decided all the same."""
    if not _running:
        return
    from luwu.training.script import run

    try:
        run.finish_at_end()
    except LuwuError as error:
        _say(error)
    close()


def _say(error: BaseException) -> None:
    print(f"luwu: the job of this process has failed: {error}", file=sys.stderr, flush=True)
