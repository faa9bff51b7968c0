"""Start a switch process from its specification. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from luwu.base.clock import new_incarnation
from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.expendable import Expendable
from luwu.base.job_spec import read_again
from luwu.base.json_file import write_json
from luwu.base.links import push_window_bytes
from luwu.base.tree import NODE, SWITCH, ranges_text, ranks_of
from luwu.transport.curve import open_security
from luwu.transport.endpoints import MovableEndpoint, parse_places
from luwu.transport.interface import Transport
from luwu.transport.opening import SHARED_SCHEME, open_transport
from switch_emu.links.linked import link_rows, linked
from switch_emu.process.counting import CountersFile
from switch_emu.process.role_spec import RoleSpec
from switch_emu.switch.adding import make_adder
from switch_emu.switch.capacity import with_slots
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.parents import parent_names
from switch_emu.switch.host_link import HostLink
from switch_emu.switch.shell import SwitchShell


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec(RoleSpec):
    """The specification of a switch process."""

    children: tuple[int, ...]
    """A bitmap of ranks per child: a worker's rank, or all ranks below a switch."""
    parent: str
    """Endpoint of the optimizer node, or of another switch."""
    more_parents: tuple[str, ...] = ()
    """Endpoints of further optimizer nodes."""
    parent_files: tuple[str, ...] = ()
    """The connection file of each of them, which is read again before each attempt to dial it."""
    name: str = SWITCH
    above: str = NODE
    """Process name of its parent."""
    rank: int = 0
    """Number of the switch in the tree."""
    workers_at: str | None = None
    """Endpoint for workers, if `listen` is for switches only."""
    summary: Path | None = None
    """File of the results, written at the end of the run."""
    connect_timeout_s: float | None = None
    """How long it seeks a parent at its start; None: without end."""
    memory_budget_bytes: int | None = None
    """The budget of which the limits are parts (`plan.py`), for the report."""
    limits: SwitchLimits = field(default_factory=SwitchLimits)
    """Limits that are set; what follows from endpoints and links is added."""
    link_roles: tuple[str, ...] = ("worker",)
    """Roles at the lower ends of emulated links, for the report."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Endpoints it listens on, and the one it dials."""
        return (self.listen, *((self.workers_at,) if self.workers_at else ()), self.parent)

    @property
    def parents(self) -> list[str]:
        """Endpoints to dial: of the optimizer nodes by number, or of the switch above."""
        given = [self.parent, *self.more_parents]
        for number in range(len(self.parent_files)):
            given[number] = MovableEndpoint(given[number], partial(self._look, number))
        return given

    def _look(self, number: int) -> str:
        """Where a parent is now, by its connection file. Raises ConfigError."""
        file = self.parent_files[number]
        found = read_again(Path(file), self.job)
        endpoints = [found.get("switch") or found.get("node"), *found.get("more_nodes", ())]
        if number >= len(endpoints):
            raise ConfigError(
                f"{file} has {len(endpoints)} optimizer nodes, and not node {number}: it is that "
                "of an earlier node"
            )
        return str(endpoints[number])

    @property
    def is_below_a_link(self) -> bool:
        """True if its parent is on another host."""
        return self.parent.startswith("tcp://") and not all(
            each.is_loopback for each in parse_places(self.parent)
        )

    @property
    def shares_memory(self) -> bool:
        """True if all children read what lies in our arena."""
        are_shared = (each.startswith(SHARED_SCHEME) for each in self.endpoints[:-1])
        return self.arena_bytes > 0 and all(are_shared)

    @property
    def lets_in(self) -> tuple[str, ...]:
        """Roles of the keys that may connect; none without connections over tcp."""
        listens = (self.listen, self.workers_at or "")
        comes_by_tcp = any(each.startswith("tcp://") for each in listens)
        return (*self.link_roles, "reader") if comes_by_tcp else ()


def serve_switch(
    spec: SwitchSpec, *, on_listening: Callable[[str], None], should_stop: Callable[[], bool],
    is_over: Callable[[], bool] = lambda: False,
) -> bool:  # fmt: skip
    """Serve one job until it is over (True), or `should_stop` (False).

    `on_listening` receives the endpoint that workers dial. Raises ConfigError.
    """
    limits = _limits(spec)
    with (
        Recorder(role="switch", path=spec.events) as recorder,
        linked(_open(spec), spec.link, seed=spec.link_seed) as transport,
    ):
        if spec.workers_at is not None:
            transport.listen(spec.workers_at)
        on_listening(transport.listen(spec.listen, advertise=spec.advertise))
        parents = parent_names(1 + len(spec.more_parents))
        for name, endpoint in zip(parents, spec.parents, strict=True):
            transport.dial(name, endpoint)
        core = SwitchCore(
            job=spec.job, incarnation=spec.incarnation or new_incarnation(), rank=spec.rank,
            children=spec.children, limits=limits, retry=spec.retry, parents_count=len(parents),
            replicas=spec.replicas,
        )  # fmt: skip
        adder = make_adder()
        recorder.event("switch.sums", version=adder.version, reason=adder.reason)
        file = spec.counters
        shell = SwitchShell(
            transport, core, recorder, add=adder.add, shares_memory=spec.shares_memory,
            counters=None if file is None else CountersFile(file, file.stem, spec.job),
            connect_timeout_s=spec.connect_timeout_s,
            host_link=HostLink(recorder) if spec.is_below_a_link else None,
        )  # fmt: skip
        is_finished = shell.run(should_stop, is_over)
        shell.drain(2.0)
        shell.write_counters()
        if is_finished and spec.summary is not None:
            with Expendable().writing(spec.summary):
                write_json(spec.summary, _summary(spec, shell))
        name = "switch.finished" if is_finished else "switch.stopped"
        recorder.event(name, **core.counts())  # type: ignore[arg-type]
    return is_finished


def _open(spec: SwitchSpec) -> Transport:
    return open_transport(
        *spec.endpoints,
        arena_bytes=spec.arena_bytes + spec.limits.cache_bytes_max * (spec.arena_bytes > 0),
        insecure=spec.insecure,
        security=open_security(spec.keys, spec.key_name, *spec.lets_in),
        peers_count=len(spec.children) + 1 + len(spec.more_parents),
    )


def _summary(spec: SwitchSpec, shell: SwitchShell) -> dict[str, Any]:
    """Results since the start of this process; bytes are payload."""
    core = shell.core
    return {
        "schema": 1,
        "name": spec.name,
        "parent": spec.above,
        "ranks": ranges_text(rank for bits in spec.children for rank in ranks_of(bits)),
        "children_count": len(spec.children),
        "memory_budget_bytes": spec.memory_budget_bytes,
        "network_bytes": shell.network_bytes(),
        "raw_count": core.raw_up.count,
        "fallback_count": core.counts()["fallback_count"],
        "pool": core.counts(),
        "links": link_rows(shell.transport, " or ".join(spec.link_roles), shell.machine.name_of),
    }


def _limits(spec: SwitchSpec) -> SwitchLimits:
    limits = spec.limits
    shares_below = (spec.workers_at or spec.listen).startswith(SHARED_SCHEME)
    if spec.arena_bytes and shares_below:
        limits = limits.in_arenas(spec.arena_bytes, len(spec.children), spec.extent_bytes)
    window_bytes = push_window_bytes(spec.link, spec.extent_bytes, limits.push_window_bytes)
    limits = replace(limits, push_window_bytes=window_bytes, extent_chunks=spec.extent_chunks)
    return with_slots(
        limits, spec.fidelity, spec.slots, child_count=len(spec.children),
        chunk_bytes=spec.chunk_bytes,
    )  # fmt: skip
