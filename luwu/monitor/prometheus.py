"""Metrics of a run, for Prometheus to scrape (the extra `prometheus`).

All is read from the files of the run (`watch.py`): the counters that switch and node write once a
second, and the spans of the last steps. So no process of the run listens for a scrape, and a slow
scraper holds up no other request.

    luwu_step_seconds{job="5713"} 0.171
    luwu_step_busy_ratio{job="5713",engine="compute"} 0.79
    luwu_step_limit{job="5713",engine="compute"} 1
    luwu_link_messages_sent_total{job="5713",role="switch",link="ranks 0"} 98
    luwu_raw_total{job="5713",role="switch"} 0
    luwu_slot_bytes{job="5713",role="switch"} 1048576
    luwu_counted_at_seconds{job="5713",role="switch"} 1790000000

A Prometheus that has a `job` label of its own calls ours `exported_job`, unless its configuration
has `honor_labels: true`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.own import needs
from luwu.monitor.watch import Watch

HELP: Final = {
    "luwu_link_messages_sent_total": "Messages that the role sent on the link.",
    "luwu_link_header_bytes_sent_total": "Bytes of the headers of messages sent on the link.",
    "luwu_link_payload_bytes_sent_total": "Bytes of gradients, weights and other payloads sent.",
    "luwu_link_messages_received_total": "Messages that the role received on the link.",
    "luwu_link_header_bytes_received_total": "Bytes of the headers of messages received.",
    "luwu_link_payload_bytes_received_total": "Bytes of payloads received on the link.",
    "luwu_link_repeats_sent_total": "Requests that were sent again because no answer came.",
    "luwu_link_duplicates_received_total": "Gradients of an extent that had been received before.",
    "luwu_slot_copies": "Copies of slots that hold an extent now; each slot has two.",
    "luwu_repeated_total": "Requests to the parent that were sent again because no answer came.",
    "luwu_duplicates_total": "Gradients of an extent received again, on all links of the role.",
    "luwu_raw_total": "Gradients of an extent that were forwarded unsummed as no slot was free.",
    "luwu_waited_total": "Contributions that waited for a slot.",
    "luwu_fallback_total": "Pulls of an extent whose copy was gone, asked of the parent again.",
    "luwu_copies_bytes": "Bytes of weights that the switch keeps for ranks that will ask for them.",
    "luwu_cached_total": "Pulls of an extent that the switch answered from its cache.",
    "luwu_cache_bytes": "Bytes of weights in the switch's cache.",
    "luwu_slots": "Slots that hold an extent now.",
    "luwu_slots_peak": "Most slots that held an extent at once.",
    "luwu_slots_limit": "Slots that there are; each has two copies.",
    "luwu_slots_opened_total": "Extents that began to be summed in a slot.",
    "luwu_slot_bytes": "Bytes of partial sums that the slots hold now.",
    "luwu_slot_bytes_limit": "Bytes that the slots may hold.",
    "luwu_slot_copies_peak": "Most copies of slots that held an extent at once.",
    "luwu_step": "Number of the first step that is not decided, from 0.",
    "luwu_attempt": "Number of the attempt that counts; an abort or a skipped step raises it.",
    "luwu_spilled_total": "Sums of an extent that found no room in memory and went to disk.",
    "luwu_owed_total": "Gradients whose receipt waited for room, or until their page was updated.",
    "luwu_redone_total": "Steps whose pages were updated twice, as they turned out to be clipped.",
    "luwu_sum_bytes": "Bytes of sums in memory that wait for their update.",
    "luwu_sum_bytes_limit": "Bytes of sums that memory has room for.",
    "luwu_updates": "Extents that are being updated now.",
    "luwu_counted_at_seconds": "Time at which the role last wrote its counts, in seconds of Unix.",
}
"""Every metric of a role, with its unit. A count is of this start of the role's process."""
JOB_HELP: Final = {
    "luwu_steps_decided_total": "Steps of the job that are decided.",
    "luwu_nodes_left_out": "Optimizer nodes that the job goes on without.",
    "luwu_step_seconds": "Time per step, mean of the last 20.",
    "luwu_step_busy_ratio": "Share of the last step in which the engine was busy; wait: workers.",
    "luwu_step_limit": "1 for the engines that limit the last step, 0 for the others.",
    "luwu_scalar": "The last value that rank 0 recorded with luwu.log, by name.",
    "luwu_memory_bytes": "Memory that a process takes: its own anonymous and shared pages.",
    "luwu_memory_bytes_limit": "Memory budget of a switch or node, Python not included.",
    "luwu_process_up": "1 for a process of the run that is alive, 0 for one that is gone.",
}
"""Every metric of the job as a whole."""

Add = Callable[[str, dict[str, str], float], None]
"""Takes a metric's name, its labels and its value."""


def serve_metrics(host: str, port: int, watch: Watch) -> tuple[int, Callable[[], None]]:
    """Answer scrapes in threads of the library's; the port, and a function that ends it.

    Raises ConfigError without the extra, or if the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as exc:
        raise ConfigError(
            f"--prometheus needs the package prometheus-client; {needs('prometheus')}", code="E208"
        ) from exc
    registry = CollectorRegistry()
    registry.register(_RunCollector(watch))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as exc:
        raise ConfigError(
            f"--prometheus: cannot listen at {host}:{port}: {exc.strerror}; give another port",
            code="E206",
        ) from exc

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), close


class _RunCollector:
    """Reads the counters of a run when it is scraped."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._lock = watch, threading.Lock()

    def describe(self) -> list[Any]:
        """Nothing before the first scrape: the names depend on the roles."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of one scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}

        def add(name: str, labels: dict[str, str], value: float) -> None:
            if name not in families:
                is_total = name.endswith("_total")
                kind = CounterMetricFamily if is_total else GaugeMetricFamily
                text = {**HELP, **JOB_HELP}.get(name, name)
                families[name] = kind(name.removesuffix("_total"), text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)

        with self._lock:  # two scrapes at once
            document = self._watch.document()
        for role, counted in document["counters"].items():
            _add_counters(add, role, counted)
        job = next((str(each["job"]) for each in document["counters"].values()), "")
        _add_steps(add, job, document)
        yield from families.values()


def _add_counters(add: Add, role: str, counted: Mapping[str, Any]) -> None:
    whose = {"job": str(counted["job"]), "role": role}
    for link, counts in counted["links"].items():
        for name, value in counts.items():
            add(f"luwu_link_{name}_total", {**whose, "link": link}, value)
    for name, value in counted["core"].items():
        add(metric_name(name), whose, value)
    add("luwu_counted_at_seconds", whose, datetime.fromisoformat(counted["at"]).timestamp())


def _add_steps(add: Add, job: str, document: Mapping[str, Any]) -> None:
    """Steps, memory and processes of the whole job."""
    whose, steps = {"job": job}, document["steps"]
    add("luwu_steps_decided_total", whose, steps["done"])
    degraded = document["degraded"]
    add("luwu_nodes_left_out", whose, 0 if degraded is None else len(degraded["nodes"]))
    if steps["per_s"]:
        add("luwu_step_seconds", whose, 1 / steps["per_s"])
    if document["step"] is not None:
        for lane in document["step"]["lanes"]:
            engine = {**whose, "engine": lane["engine"]}
            add("luwu_step_busy_ratio", engine, lane["busy_ratio"])
            add("luwu_step_limit", engine, lane["is_limit"])
    for name, found in document["scalars"].items():
        if found["values"]:
            add("luwu_scalar", {**whose, "name": name}, found["values"][-1])
    for row in document["memory"]:
        role = {**whose, "role": row["name"]}
        if row["now_bytes"] is not None:
            add("luwu_memory_bytes", role, row["now_bytes"])
        if row["budget_bytes"] is not None:
            add("luwu_memory_bytes_limit", role, row["budget_bytes"])
    for each in document["processes"]:
        add("luwu_process_up", {**whose, "role": each["name"]}, each["is_alive"])


def metric_name(name: str) -> str:
    """A core's count by Prometheus's rules: totals say so, what goes both ways has no suffix."""
    if name.endswith("_count"):
        return f"luwu_{name.removesuffix('_count')}_total"
    return f"luwu_{name.removesuffix('_now')}"
