"""The document a comparison comes to: one job, several arms, the same fields for each.

Bytes are totals of the run, payload only, summed over workers; those of `links` passed emulated
links, headers included. What an arm does not have is null.
`worker_peak_rss_bytes`, `switch_peak_rss_bytes`, `node_peak_rss_bytes` and, of all of them at one
instant, `memory_peak_bytes` are sampled from outside ten times a second: memory that is no file's,
each page counted once (`luwu/base/process_memory.py`). Those of workers are at least what each
measured itself after its backwards.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from luwu.base import own
from luwu.base.config import RunConfig
from luwu.base.errors import LuwuError
from luwu.compare.arm import ArmRun
from luwu.launch.nodes import kind_of, total_of_nodes

SCHEMA: Final = 5
"""5: all arms begin at step 0; of engines only the limit, not the seconds of each."""
MODEL: Final = "gpt"


def environment(arms: Sequence[ArmRun]) -> dict[str, Any]:
    """The environment of the run, as far as results depend on it."""
    first = arms[0].workers[0]
    return {
        "luwu": own.version(),
        "torch": first["torch_version"],
        "pyzmq": metadata.version("pyzmq"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "cpu_capability": first["cpu_capability"],
        "device": first["device"],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "compute_threads": {arm.name: arm.workers[0]["compute_threads"] for arm in arms},
    }


def comparison(config: RunConfig, arms: Sequence[ArmRun]) -> dict[str, Any]:
    """The whole document. Raises LuwuError if the arms did not train the same job."""
    first = arms[0].workers[0]
    _check_same_job(arms)
    tokens_per_step = sum(worker["tokens"] for worker in arms[0].workers) // max(
        1, len(first["loss"])
    )
    job = {
        "model": MODEL,
        "parameters": first["parameters_count"],
        "workers": config.workers,
        "steps": first["steps"],
        "tokens_per_step": tokens_per_step,
        "seed": first["seed"],
        "dtype": first["dtype"],
        "state_dtype": config.state_dtype,
        "master_dtype": config.master_dtype,
        "data_digest": first["data_digest"],
    }
    return {
        "schema": SCHEMA,
        "environment": environment(arms),
        "job": job,
        "arms": [arm_document(arm, tokens_per_step) for arm in arms],
    }


_LARGEST_OF_WORKERS = (
    "worker_parameter_bytes_peak", "unit_bytes_max", "prefetch_units", "worker_optimizer_bytes",
    "device_bytes_max",
)  # fmt: skip
"""Measured by each worker; the largest value is shown."""


def arm_document(arm: ArmRun, tokens_per_step: int) -> dict[str, Any]:
    """One arm's measurements, and what was planned."""
    workers, node = arm.workers, arm.node or {}
    step_seconds = job_step_seconds(workers)
    median = statistics.median(step_seconds)
    kernel = arm.kernel_disk
    return {
        "name": arm.name,
        "processes": len(workers),
        "compute_threads": arm.threads,
        "loss": [
            math.fsum(each) / len(workers)
            for each in zip(*(worker["loss"] for worker in workers), strict=True)
        ],
        "step_seconds": step_seconds,
        "step_seconds_median": median,
        "tokens_per_second": tokens_per_step / median if median > 0 else None,
        "worker_peak_rss_bytes": [_worker_peak(arm, worker) for worker in workers],
        **{name: max(_known(workers, name), default=None) for name in _LARGEST_OF_WORKERS},
        "switch_peak_rss_bytes": [
            peak for name, peak in sorted(arm.memory_peaks.items()) if kind_of(name) == "switch"
        ],
        "node_peak_rss_bytes": total_of_nodes(arm.memory_peaks),
        "memory_peak_bytes": arm.memory_peak_of_all,
        "node_state_bytes": node.get("node_state_bytes"),
        "memory_budget_bytes": node.get("memory_budget_bytes"),
        "switch_memory_budget_bytes": arm.switches[0].get("memory_budget_bytes")
        if arm.switches
        else None,
        "chunk_bytes": node.get("chunk_bytes"),
        "disk_space_bytes": node.get("disk_space_bytes"),
        "network_bytes": _network_bytes(workers, node) if node else None,
        "switches": arm.switches,
        "disk_bytes": node.get("disk_bytes"),
        "disk_bytes_by_node": [each["disk_bytes"] for each in node.get("nodes", [node])]
        if node
        else None,
        "spill_bytes": node.get("spill_bytes"),
        "switch": arm.pool,
        "disk_bytes_kernel": {"read": kernel.read, "written": kernel.written}
        if kernel is not None
        else None,
        "overlap": {
            "pages_updated_before_last_push_ratio": arm.updated_before_last_push_ratio,
            "pull_before_use_ratio": _mean(workers, "pull_before_use_ratio"),
        },
        "links": arm.links,
        "aborts_count": max(worker["aborts_count"] for worker in workers),
        "weights_digest": node.get("weights_digest") or workers[0]["weights_digest"],
        "estimate": arm.estimate,
        "bound_by": arm.bound_by,
    }


def job_step_seconds(workers: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds of each step of the job: from the last worker's end of a step to that of the next.

    The slowest worker's own time would be too much where workers do not wait for each other at the
    end of a step: a rank that is late in one is early in the next (with four workers on two cores,
    281 ms where 238 ms went by). The first step's end has none before it: there it is that time.
    """
    ended_ns = [max(each) for each in zip(*(w["step_ended_ns"] for w in workers), strict=True)]
    first_s = max(worker["step_seconds"][0] for worker in workers) if ended_ns else 0.0
    return [first_s, *((later - ns) / 1e9 for ns, later in pairwise(ended_ns))][: len(ended_ns)]


def cpu_name() -> str:
    """The processor's name as the kernel tells it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _worker_peak(arm: ArmRun, worker: dict[str, Any]) -> int | None:
    taken = arm.memory_peaks.get(f"worker-{worker['rank']}"), worker.get("private_bytes_max")
    return max((count for count in taken if count is not None), default=None)


def _network_bytes(workers: Sequence[dict[str, Any]], node: dict[str, Any]) -> dict[str, Any]:
    """Bytes that workers pushed and pulled, and bytes on the node's links."""
    said = [worker.get("network_bytes") or {} for worker in workers]
    links = node["network_bytes"]
    return {
        "push": _sum(said, "push"),
        "pull": _sum(said, "pull"),
        "into_node": links["into_node"],
        "out_of_node": links["out_of_node"],
        "headers": links["headers"] + (_sum(said, "headers") or 0),
    }


def _sum(records: Sequence[dict[str, Any]], key: str) -> int | None:
    values = _known(records, key)
    return sum(values) if len(values) == len(records) else None


def _mean(workers: Sequence[dict[str, Any]], key: str) -> float | None:
    values = _known(workers, key)
    return math.fsum(values) / len(values) if values else None


def _known(records: Sequence[dict[str, Any]], key: str) -> list[Any]:
    return [record[key] for record in records if record.get(key) is not None]


def _check_same_job(arms: Sequence[ArmRun]) -> None:
    first = arms[0]
    for arm in arms[1:]:
        for key in ("data_digest", "parameters_count", "seed", "dtype", "steps"):
            if arm.workers[0][key] != first.workers[0][key]:
                raise LuwuError(
                    f"{arm.name} trained with {key}={arm.workers[0][key]}, {first.name} with "
                    f"{first.workers[0][key]}: the arms cannot be compared"
                )
