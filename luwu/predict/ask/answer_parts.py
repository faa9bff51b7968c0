"""Parts that all answers have: seconds, memory, warnings."""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import words
from luwu.base.quantities import format_bytes
from luwu.predict.ask.question import AnyQuestion, Question, SocketQuestion
from luwu.predict.model.placement import domain_count

SCHEMA: Final = 4
"""4: no elasticities, sources and savings; 3: no break-even tokens, no steps by other software."""


def nics(question: AnyQuestion) -> dict[str, Any]:
    """NICs of a host, and what a device has of one, as a document."""
    network = question.job.network
    if isinstance(question, SocketQuestion):
        devices = question.job.host_sockets
        sharing, is_assumed = float(devices), True
    else:
        devices = (
            domain_count(question.job)
            if isinstance(question, Question)
            else int(question.job.device.domain_count)
        )
        sharing, is_assumed = network.devices_count, question.nics_per_host is None
    nic_rate = network.flow_rate(0.0)
    return {
        "per_host": round(devices / sharing), "host_devices": devices, "is_assumed": is_assumed,
        "rate": nic_rate, "device_rate": min(network.port_rate, nic_rate / sharing),
    }  # fmt: skip


def nics_text(found: dict[str, Any]) -> str:
    """The same for people."""
    count, devices = found["per_host"], found["host_devices"]
    of = f"{devices} devices" if devices > 1 else "one device"
    return (
        f"NICs              {count} per host of {of}{' (assumed)' if found['is_assumed'] else ''}: "
        f"{found['device_rate'] * 8e-9:,.4g} Gbit/s per device"
    )


def parts_text(parts: dict[str, float], whole_s: float) -> list[str]:
    """Seconds by what they go to, a line each, for people."""
    unit, scale = ("s", 1.0) if whole_s >= 1 else ("ms", 1e3)
    return [
        f"  {words(name):<24} {seconds * scale:9.3f} {unit}  {seconds / whole_s:6.1%}"
        for name, seconds in parts.items()
        if seconds
    ]


def memory_text(document: dict[str, Any], what: str = "a device") -> str:
    """Uses of memory, as text."""
    memory, has = document["memory_bytes"], document["memory_bytes_max"]
    said = ", ".join(f"{words(name)} {format_bytes(nbytes)}" for name, nbytes in memory.items())
    known = "" if has is None else f"; it has {format_bytes(has)}"
    return f"memory of {what}: {said}{known}"


def doubts_text(document: dict[str, Any]) -> list[str]:
    """Look-ups beyond what was measured, and warnings, for people."""
    lines = [
        f"beyond what was measured: {name}: {said}"
        for name, said in document["extrapolated"].items()
    ]
    return lines + [f"warning: {each}" for each in document["warnings"]]
