"""Start a switch process from its specification. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from luwu.base.clock import new_incarnation
from luwu.base.events import Recorder
from luwu.base.json_file import write_json
from luwu.base.links import LinkPair, push_window_bytes
from luwu.base.outstanding import retry_policy
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from luwu.wire.actions import PARENT
from switch_emu.counting import CountersFile
from switch_emu.link_report import link_rows
from switch_emu.linked import linked
from switch_emu.switch.actions import SwitchLimits
from switch_emu.switch.adding import make_adder
from switch_emu.switch.capacity import with_slots
from switch_emu.switch.ranges import SlotRanges, lent_range
from switch_emu.switch.recorded import make_switch_core, record_file
from switch_emu.switch.resources import pool_resources, window_of_link
from switch_emu.switch.shell import SwitchShell

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """What a switch process is started with."""

    job: int
    world_size: int
    listen: str
    """Endpoint for its children; `tcp://127.0.0.1:0` and `ipc://auto` let the system choose."""
    parent: str
    """Endpoint of the optimizer node."""
    advertise: str | None = None
    insecure: bool = False
    slot_bytes_max: int = 256 * _MIB
    copies_bytes_max: int = 256 * _MIB
    events: Path | None = None
    counters: Path | None = None
    """Where what was counted is put, once a second and at the end."""
    grace_s: float = 600.0
    record: Path | None = None
    """Where all messages are written down (`recorded.py`)."""
    arena_bytes: int = 0
    """Shared memory of each child for what it pushes, and of ours for sums; 0: none is shared."""
    chunk_bytes: int = _MIB
    stripes: int = 1
    """Connections to the node."""
    link: LinkPair | None = None
    """Emulated, to each child; None: none is."""
    link_seed: int = 0
    retry_first_ms: int = 0
    """How patient to be with the parent; 0: as usual."""
    retry_most_ms: int = 0
    retry_ps_per_byte: int = 0
    fidelity: str = "functional"
    slots: int | None = None
    """In protocol fidelity; None: as many as there is memory for, up to a default."""
    summary: Path | None = None
    """Where the account of the run is written at the end."""


def serve_switch(
    spec: SwitchSpec, *, on_listening: Callable[[str], None], should_stop: Callable[[], bool],
    ranges: SlotRanges | None = None,
) -> bool:  # fmt: skip
    """Serve one job until it is over (True), or until somebody wants us to stop before (False).

    `on_listening` is told the endpoint that workers dial; `ranges` are the slots of a switch that
    serves several jobs. Raises ConfigError if there are too few.
    """
    with (
        lent_range(ranges, _limits(spec)) as limits,
        Recorder(role="switch", path=spec.events) as recorder,
        linked(_open(spec), spec.link, seed=spec.link_seed) as transport,
        record_file(spec.record) as file,
    ):
        on_listening(transport.listen(spec.listen, advertise=spec.advertise))
        transport.dial(PARENT, spec.parent)
        core = make_switch_core(
            job=spec.job,
            incarnation=new_incarnation(),
            children=[1 << rank for rank in range(spec.world_size)],
            limits=limits,
            retry=retry_policy(spec.retry_first_ms, spec.retry_most_ms, spec.retry_ps_per_byte),
            file=file,
        )
        adder = make_adder()
        if limits.slots is not None:
            recorder.event("switch.pool", **pool_resources(limits.slots, spec.world_size))
        recorder.event("switch.sums", version=adder.version, reason=adder.reason)
        shell = SwitchShell(
            transport,
            core,
            recorder,
            grace_s=spec.grace_s,
            add=adder.add,
            counters=None if spec.counters is None else CountersFile(spec.counters, "switch"),
        )
        is_finished = shell.run(should_stop)
        shell.drain(2.0)
        shell.write_counters()
        if spec.summary is not None and is_finished:
            links = link_rows(transport, "worker", shell.link_name)
            pool = {**core.report(), "window": _window(spec, limits)}
            write_json(spec.summary, {"schema": 1, "pool": pool, "links": links})
        counts: dict[str, Any] = {**core.counts()}
        recorder.event("switch.finished" if is_finished else "switch.stopped", **counts)
    return is_finished


def _open(spec: SwitchSpec) -> Transport:
    return open_transport(
        spec.listen,
        arena_bytes=spec.arena_bytes,
        insecure=spec.insecure,
        stripes=spec.stripes,
        peers_count=spec.world_size + 1,
    )


def _window(spec: SwitchSpec, limits: SwitchLimits) -> dict[str, Any] | None:
    """The pool's window beside what a child's link carries in a round trip, if both are known."""
    if limits.slots is None or spec.link is None or spec.link.up.rate_bytes_per_s is None:
        return None
    delays_ns = spec.link.up.delay_ns + spec.link.down.delay_ns
    leaves_ns = spec.link.up.serialise_ns(spec.chunk_bytes)
    return window_of_link(
        limits.slots,
        rate_bytes_per_s=spec.link.up.rate_bytes_per_s,
        round_trip_s=(delays_ns + leaves_ns) / 1e9,
    )


def _limits(spec: SwitchSpec) -> SwitchLimits:
    limits = SwitchLimits(
        slot_bytes_max=spec.slot_bytes_max, copies_bytes_max=spec.copies_bytes_max
    )
    if spec.arena_bytes:
        limits = SwitchLimits.in_arenas(spec.arena_bytes, spec.world_size, spec.chunk_bytes)
    window_bytes = push_window_bytes(spec.link, spec.chunk_bytes, limits.push_window_bytes)
    limits = replace(limits, push_window_bytes=window_bytes)
    return with_slots(
        limits, spec.fidelity, spec.slots, child_count=spec.world_size, chunk_bytes=spec.chunk_bytes
    )
