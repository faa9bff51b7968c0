"""What the roles of a run have counted, for Prometheus to scrape (the extra `prometheus`).

The roles write `counters/*.json` once a second (`switch_emu/counting.py`); a scrape reads what they
last wrote, so no role listens for it and a slow scraper holds nobody up.

    luwu_link_messages_sent_total{role="switch",link="ranks 0"} 98
    luwu_slot_opened_total{role="switch",slot="3"} 12
    luwu_raw_total{role="switch"} 0
    luwu_slot_bytes{role="switch"} 1048576
    luwu_counted_at_seconds{role="switch"} 1790000000
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from luwu.base.errors import ConfigError
from luwu.own import needs

LINK, SLOT = "link", "slot"

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

        def add(name: str, text: str, labels: dict[str, str], value: float) -> None:
            if name not in families:
                is_total = name.endswith("_total")
                kind = CounterMetricFamily if is_total else GaugeMetricFamily
                families[name] = kind(name.removesuffix("_total"), text, labels=list(labels))
            families[name].add_metric(list(labels.values()), value)

        for role, document in self._read().items():
            of_role = {"role": role}
            for link, counts in document["links"].items():
                for name, value in counts.items():
                    text = f"{name.replace('_', ' ')}, between processes"
                    add(f"luwu_link_{name}_total", text, {**of_role, LINK: link}, value)
            for name, values in document["slots"].items():
                text = f"{name.replace('_', ' ')}, by slot"
                for slot, value in enumerate(values):
                    labels = {**of_role, SLOT: str(slot)}
                    add(metric_name(f"slot_{name}"), text, labels, value)
            for name, value in document["core"].items():
                add(metric_name(name), name.replace("_", " "), of_role, value)
            at = datetime.fromisoformat(document["at"]).timestamp()
            add("luwu_counted_at_seconds", "when the role last wrote its counts", of_role, at)
        yield from families.values()


def metric_name(name: str) -> str:
    """A core's count by Prometheus's rules: totals say so, what goes both ways has no suffix."""
    if name.endswith("_count"):
        return f"luwu_{name.removesuffix('_count')}_total"
    return f"luwu_{name.removesuffix('_now')}"
