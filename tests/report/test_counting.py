"""What switch and node count, where it is put, and how it is read: `luwu status`, Prometheus."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.prometheus import HELP, JOB_HELP, metric_name, serve_metrics
from luwu.monitor.watch import Watch
from luwu.wire.link_counts import LinkCount, LinkCounts
from luwu.wire.messages import Push, Weights
from switch_emu.process.counting import CountersFile
from switch_emu.switch.core.fixed_slots import FixedSlotPool, PoolSize
from tests.helpers.collecting import at_each_collection
from tests.helpers.local_job import Job, Worker, cluster_for

ROOT = Path(__file__).parents[2]


def test_connections_are_counted_by_link_and_by_kind() -> None:
    """Goal: a child that came back under another name is one link; a total is of what is asked."""
    links = LinkCounts()
    links.sent("p-1", Weights, 10, 100)
    links.sent("p-2", Weights, 1, 2)
    links.received("p-2", Push, 3, 4)
    links.received("parent", None, 5, 6)
    found = links.by_name(lambda peer: peer if peer == "parent" else "ranks 0")
    assert found == {
        "parent": LinkCount(0, 0, 0, 1, 5, 6),
        "ranks 0": LinkCount(2, 11, 102, 1, 3, 4),
    }
    assert links.total(Push) == LinkCount(0, 0, 0, 1, 3, 4)
    assert links.total(Weights, of=lambda peer: peer == "p-2") == LinkCount(1, 1, 2)
    assert links.total().header_bytes == 19


def test_the_loop_counts_a_new_link_while_another_thread_reads() -> None:
    """Goal: a summary or a metric never fails because a peer came."""
    links = LinkCounts()
    for k in range(64):
        links.sent(f"p-{k}", Weights, 10, 100)
    others = iter(range(64, 100_000))
    with at_each_collection(lambda: links.sent(f"p-{next(others)}", Weights, 10, 100)):
        assert links.total().messages_sent >= 64
    with at_each_collection(lambda: links.sent(f"p-{next(others)}", Weights, 10, 100)):
        assert links.by_name(lambda peer: "all")["all"].messages_sent >= 64


def test_both_ends_of_a_link_count_the_same_and_the_switch_folds(tmp_path: Path) -> None:
    """Goal: counts are those of messages that passed: what one end sent the other received; and
    towards the node go one child's gradients, not two. Method: a whole job over memory."""
    job = Job()
    with cluster_for(job, tmp_path) as cluster:
        cluster.run(Worker(job))
        cluster.wait_until_served()
        at_switch = cluster.switch.links.by_name(cluster.switch.machine.name_of)
        at_node = cluster.node.links.by_name(cluster.node.machine.name_of)
        counted = cluster.switch.machine.counts()
    assert set(at_switch) == {"parent", "ranks 0", "ranks 1"}
    up, (down,) = at_switch["parent"], at_node.values()
    assert set(at_node) == {"ranks 0, 1"}
    assert (up.messages_sent, up.payload_bytes_sent, up.header_bytes_sent) == (
        down.messages_received, down.payload_bytes_received, down.header_bytes_received,
    )  # fmt: skip
    gradient_bytes = sum(chunk.sum_bytes for chunk in job.layout.chunks if chunk.trainable)
    for rank in range(job.world_size):
        assert at_switch[f"ranks {rank}"].payload_bytes_received >= job.steps * gradient_bytes
    rank_1 = at_switch["ranks 1"].payload_bytes_received  # rank 0 also sends first weights
    assert abs(up.payload_bytes_sent - at_switch["ranks 0"].payload_bytes_received) < 4096
    assert up.payload_bytes_sent < 2 * rank_1
    assert counted["slots_now"] == counted["slot_bytes_now"] == counted["raw_count"] == 0


def write_run(path: Path) -> RunDirectory:
    """A run directory with what a switch counted."""
    run = RunDirectory.create(path)
    links = {"parent": LinkCount(1, 2, 3, 4, 5, 6), "ranks 0": LinkCount(7, 8, 9, 10, 11, 12, 0, 2)}
    CountersFile(run.counters("switch"), "switch", 5713).write(
        links, {"raw_count": 3, "slots_now": 2, "slot_bytes_now": 4096}
    )
    return run


def test_the_status_of_a_run_has_the_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    document = Watch(run).document()
    assert document["counters"]["switch"]["links"]["parent"]["payload_bytes_sent"] == 3
    links = {row["link"]: row for row in document["links"]}
    assert (links["ranks 0"]["received_bytes"], links["ranks 0"]["sent_bytes"]) == (23, 17)


@pytest.mark.feature("counters for Prometheus")
def test_every_count_says_what_it_counts(tmp_path: Path) -> None:
    """Goal: no metric without a sentence, and no sentence without a metric. Method: what the cores
    of both fidelities count, and what every link does."""
    with cluster_for(Job(), tmp_path) as cluster:
        counted = [*cluster.node.machine.counts(), *cluster.switch.machine.counts()]
    pool = FixedSlotPool(ranks=3, pool=PoolSize(slot_count=2, slot_bytes=4096))
    names = {metric_name(name) for name in (*counted, *pool.counts())}
    names |= {f"luwu_link_{name}_total" for name in LinkCount().document()}
    assert names | {"luwu_counted_at_seconds"} == set(HELP)


@pytest.mark.feature("counters for Prometheus")
def test_prometheus_scrapes_what_the_roles_last_wrote(tmp_path: Path) -> None:
    """Goal: a real scrape over HTTP has every count with its role and link, and follows the files;
    afterwards nothing listens. Method: the library's own parser reads it."""
    pytest.importorskip("prometheus_client", reason="the extra prometheus is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    run = write_run(tmp_path / "run")
    port, close = serve_metrics("127.0.0.1", 0, Watch(run))

    def scrape() -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        families = list(text_string_to_metric_families(text))
        samples = [sample for family in families for sample in family.samples]
        whose = {(each.labels["job"], each.labels.get("role", "")) for each in samples}
        assert whose == {("5713", "switch"), ("5713", "")}
        assert all(family.documentation.endswith(".") for family in families)
        return {(sample.name, sample.labels.get("link", "")): sample.value for sample in samples}

    try:
        found = scrape()
        assert found["luwu_link_messages_sent_total", "ranks 0"] == 7
        assert found["luwu_link_payload_bytes_received_total", "parent"] == 6
        assert found["luwu_raw_total", ""] == 3
        assert found["luwu_slots", ""] == 2
        assert found["luwu_link_duplicates_received_total", "ranks 0"] == 2
        CountersFile(run.counters("switch"), "switch", 5713).write({}, {"raw_count": 5})
        assert scrape()["luwu_raw_total", ""] == 5
        with pytest.raises(ConfigError, match="give another port"):
            serve_metrics("127.0.0.1", port, Watch(run))
    finally:
        close()
    with pytest.raises(OSError, match="refused"):
        scrape()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    """Goal: no panel of docs/deploy/grafana.json is empty for a name or a label that is not."""
    dashboard = json.loads((ROOT / "docs" / "deploy" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"]]
    named = {name for query in queries for name in re.findall(r"luwu_\w+", query)}
    assert named <= {*HELP, *JOB_HELP}
    assert len(named) > 8
    legends = " ".join(t["legendFormat"] for panel in dashboard["panels"] for t in panel["targets"])
    assert set(re.findall(r"{{(\w+)}}", legends)) <= {"engine", "role", "name", "link"}


def test_counts_that_cannot_be_written_are_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6. Goal: one warning, with the directory, and the role goes on. Method: the directory is a
    file, which no file can be made in."""
    (tmp_path / "counters").touch()
    file = CountersFile(tmp_path / "counters" / "node.json", "node", 1)
    for _ in range(2):
        file.write({}, {})
    [warning] = capsys.readouterr().err.splitlines()
    assert f"node.json cannot be written in {tmp_path / 'counters'}" in warning
