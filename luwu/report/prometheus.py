"""Counters of a run's roles, for Prometheus to scrape (the extra `prometheus`).

The roles write `counters/*.json` once a second (`process/counting.py` there); a scrape reads what
they last wrote, so no role listens for it and a slow scraper holds nobody up.

    luwu_link_messages_sent_total{job="5713",role="switch",link="ranks 0"} 98
    luwu_slot_opened_total{job="5713",role="switch",slot="3"} 12
    luwu_raw_total{job="5713",role="switch"} 0
    luwu_slot_bytes{job="5713",role="switch"} 1048576
    luwu_counted_at_seconds{job="5713",role="switch"} 1790000000

A Prometheus that has a `job` label of its own calls ours `exported_job`, unless its configuration
has `honor_labels: true`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.own import needs

LINK, SLOT = "link", "slot"
HELP: Final = {
    "luwu_link_messages_sent_total": "Messages that the role sent on the link.",
    "luwu_link_header_bytes_sent_total": "Bytes of the headers of messages sent on the link.",
    "luwu_link_payload_bytes_sent_total": "Bytes of gradients, weights and other payloads sent.",
    "luwu_link_messages_received_total": "Messages that the role received on the link.",
    "luwu_link_header_bytes_received_total": "Bytes of the headers of messages received.",
    "luwu_link_payload_bytes_received_total": "Bytes of payloads received on the link.",
    "luwu_link_repeats_sent_total": "Requests that were sent again for want of an answer.",
    "luwu_link_duplicates_received_total": "Gradients of a chunk that had been taken in before.",
    "luwu_slot_opened_total": "Chunks that found the slot free and began to be summed in it.",
    "luwu_slot_taken_total": "Gradients of a chunk that found the slot taken, handed on unsummed.",
    "luwu_slot_copies": "Copies of slots that hold a chunk now; each slot has two.",
    "luwu_slot_held_copies": "Copies of the slot that hold a chunk now, of two.",
    "luwu_repeated_total": "Requests to the parent that were sent again for want of an answer.",
    "luwu_duplicates_total": "Gradients of a chunk that came again, on all links of the role.",
    "luwu_raw_total": "Gradients of a chunk that were handed on unsummed, for want of a slot.",
    "luwu_waited_total": "Contributions that waited for a slot.",
    "luwu_fallback_total": "Pulls of a chunk whose copy was gone, asked of the parent again.",
    "luwu_copies_bytes": "Bytes of weights that the switch keeps for ranks that will ask for them.",
    "luwu_cached_total": "Pulls of an extent that the switch answered from its cache.",
    "luwu_cache_bytes": "Bytes of weights in the switch's cache.",
    "luwu_slots": "Slots that hold a chunk now.",
    "luwu_slots_peak": "Most slots that held a chunk at once.",
    "luwu_slots_limit": "Slots that there are; each has two copies.",
    "luwu_slots_opened_total": "Chunks that began to be summed in a slot.",
    "luwu_slot_bytes": "Bytes of partial sums that the slots hold now.",
    "luwu_slot_bytes_limit": "Bytes that the slots may hold.",
    "luwu_slot_copies_peak": "Most copies of slots that held a chunk at once.",
    "luwu_step": "Number of the first step that is not decided, from 0.",
    "luwu_attempt": "Number of the attempt that counts; an abort or a skipped step raises it.",
    "luwu_spilled_total": "Sums of a chunk that found no room in memory and went to disk.",
    "luwu_owed_total": "Gradients whose receipt waited for room, or until their page was updated.",
    "luwu_overflow_total": "Chunks whose encoded sum overflowed, and that were sent again.",
    "luwu_sum_bytes": "Bytes of sums in memory that wait for their update.",
    "luwu_sum_bytes_limit": "Bytes of sums that memory has room for.",
    "luwu_updates": "Pages that are being updated now.",
    "luwu_counted_at_seconds": "Time at which the role last wrote its counts, in seconds of Unix.",
}
"""Every metric, with its unit. A count is of this start of the role's process."""

Counters = Mapping[str, Mapping[str, Any]]
"""By role: the document that it wrote."""


def serve_metrics(
    host: str, port: int, read: Callable[[], Counters]
) -> tuple[int, Callable[[], None]]:
    """Answer scrapes in threads of the library's; the port, and a function that ends it.

    `read` is called for each scrape. Raises ConfigError without the extra, or if the port is taken.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as exc:
        raise ConfigError(
            f"--prometheus needs the package prometheus-client; {needs('prometheus')}",
            code="E208",
        ) from exc
    registry = CollectorRegistry()
    registry.register(_RunCollector(read))
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

    def __init__(self, read: Callable[[], Counters]) -> None:
        self._read = read

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
                text = HELP.get(name, name)
                families[name] = kind(name.removesuffix("_total"), text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)

        for role, document in self._read().items():
            whose = {"job": str(document["job"]), "role": role}
            for link, counts in document["links"].items():
                for name, value in counts.items():
                    add(f"luwu_link_{name}_total", {**whose, LINK: link}, value)
            for name, values in document["slots"].items():
                for slot, value in enumerate(values):
                    add(metric_name(f"slot_{name}"), {**whose, SLOT: str(slot)}, value)
            for name, value in document["core"].items():
                add(metric_name(name), whose, value)
            at = datetime.fromisoformat(document["at"]).timestamp()
            add("luwu_counted_at_seconds", whose, at)
        yield from families.values()


def metric_name(name: str) -> str:
    """A core's count by Prometheus's rules: totals say so, what goes both ways has no suffix."""
    if name.endswith("_count"):
        return f"luwu_{name.removesuffix('_count')}_total"
    return f"luwu_{name.removesuffix('_now')}"
