"""NICs of a host: how many there are, what a device has of one, and what LuWu would save if a host
had its units once (L8) instead of once for each of its devices.

The saving is of the same question with `per_host` changed, on the ports that a topology leaves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from luwu.base.identifiers import by_identifier, words
from luwu.predict.ask.question import AnyQuestion, InferenceQuestion, Question, SocketQuestion
from luwu.predict.model.placement import domain_count
from luwu.predict.systems.in_network import PER_HOST, host_devices, port_bytes

_PLURAL: Final = {"pull": "pulls", "push": "pushes"}


def nics(question: AnyQuestion) -> dict[str, Any]:
    """As a document."""
    network = question.job.network
    if isinstance(question, SocketQuestion):
        devices = question.job.host_sockets
        sharing, is_assumed = float(devices), True
    else:
        devices, sharing = _host_devices(question), network.devices_count
        is_assumed = question.nics_per_host is None
    nic_rate = network.flow_rate(0.0)
    found: dict[str, Any] = {
        "per_host": round(devices / sharing), "host_devices": devices, "is_assumed": is_assumed,
        "rate": nic_rate, "device_rate": min(network.port_rate, nic_rate / sharing),
        "once_per_host": {},
    }  # fmt: skip
    if isinstance(question, Question) and question.nodes is not None:
        found["once_per_host"] = _once_per_host(question.as_on_topology())
    return found


def _host_devices(question: Question | InferenceQuestion) -> int:
    if isinstance(question, Question):
        return domain_count(question.job)
    return int(question.job.device.domain_count)


def _once_per_host(question: Question) -> dict[str, Any]:
    """For each other value of `per_host`: what it would save."""
    nodes, devices = question.nodes, question.job.network.devices_count
    assert nodes is not None
    if host_devices(question.job) == 1:
        return {}
    step_s, before = question.answer().seconds, port_bytes(question.job, nodes)
    found = {}
    for name in PER_HOST[PER_HOST.index(nodes.per_host) + 1 :]:
        changed = replace(nodes, per_host=name)
        seconds = replace(question, part=changed).answer().seconds
        after = port_bytes(question.job, changed)
        found[name] = {
            "step_s": seconds, "saved_s": step_s - seconds,
            "port_bytes": {way: devices * nbytes for way, nbytes in after.items()},
            "saved_port_bytes": {way: devices * (before[way] - after[way]) for way in after},
        }  # fmt: skip
    return by_identifier(found)


def nics_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    count, devices = found["per_host"], found["host_devices"]
    of = f"{devices} devices" if devices > 1 else "one device"
    lines = [
        f"NICs              {count} per host of {of}{' (assumed)' if found['is_assumed'] else ''}: "
        f"{found['device_rate'] * 8e-9:,.4g} Gbit/s per device"
    ]
    for name, each in found["once_per_host"].items():
        less = " and ".join(
            f"{nbytes / 1e9:,.4g} GB of {_PLURAL[way]}"
            for way, nbytes in each["saved_port_bytes"].items()
            if nbytes
        )
        lines.append(
            f"  one {words(name)} per host, not per device: {each['step_s']:.3f} s, saves "
            f"{each['saved_s']:.3f} s, and each NIC {less}"
        )
    return lines
