"""`luwu compare --hosts`: arms on network namespaces, bytes of every link, nothing left (I8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.launch.hosts.namespaces import INTERFACE, Namespaces, check_namespaces
from luwu.testing.cluster import Cluster
from luwu.testing.leftovers import until_empty
from tests.processes.jobs import SMALL, Comparison, Outside, compare, text_file


def why_not() -> str:
    """Why this machine can have no hosts; nothing if it can."""
    try:
        check_namespaces()
        with Namespaces(1, 125e6, log=Path(os.devnull), run_id="test"):
            return ""
    except ConfigError as error:
        return str(error)


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
pytestmark = needs_namespaces

COUNT_ERROR_MAX = 0.03


def veths() -> list[str]:
    """Virtual links in our own namespace, and processes that hold one open."""
    links = [name for name in os.listdir("/sys/class/net") if name.startswith(("veth", "l0"))]
    held = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() != "cat":
                continue
            if os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                held += [f"namespace of {pid}"] if b"LUWU_RUN_ID=" in environ else []
        except OSError:
            continue  # gone already
    return links + held


def check_counts(done: Comparison) -> None:
    """Kernel counters stand beside ours on every link, within 3 %."""
    links = done.arm()["host_links"]
    assert [each["link"] for each in links] == ["node", "host-0", "host-1"]
    for each in links:
        for way in ("up", "down"):
            ours, kernel = each[f"{way}_bytes"], each["kernel"][way]
            assert ours <= kernel <= ours * (1 + COUNT_ERROR_MAX), (each, way)


def run_on_hosts(directory: Path, workers: int, *flags: str, arms: str = "luwu") -> Comparison:
    return compare(
        directory, "--hosts", "2", "--link", "1gbit", "--workers", str(workers), "--steps", "6",
        "--layers", "4", "--width", "128", "--context", "16", "--batch", "1", *flags, arms=arms,
    )  # fmt: skip


@pytest.mark.feature("every arm on hosts of network namespaces")
@pytest.mark.parametrize("workers", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_one_gradient_leaves_a_host(workers: int, tmp_path: Path) -> None:
    """Criterion d. Goal: a leaf switch per host sums its workers over shared memory: what leaves a
    host is one gradient, whatever the number of its workers, and weights reach it once a step,
    however often they are pulled; kernel counters agree within 3 %."""
    done = run_on_hosts(tmp_path, workers)
    gradient = 4 * done.document["job"]["parameters"]
    switches = {each["name"]: each["network_bytes"] for each in done.arm()["switches"]}
    assert set(switches) == {"switch", "host-0", "host-1"}
    for host in ("host-0", "host-1"):
        assert switches[host]["pushed_to_parent"] == 6 * gradient
        assert switches[host]["pushed_by_children"] == workers // 2 * 6 * gradient
        pulled = switches[host]["to_children"] / (workers // 2)
        assert pulled > 9 * gradient, "for forward and for backward, but for the root"
        assert 6 * gradient <= switches[host]["from_parent"] <= 7 * gradient
    check_counts(done)
    assert done.arm()["host_links_bound_step_seconds"] > gradient / 125e6
    assert until_empty(veths) == []


@pytest.mark.slow
def test_every_arm_runs_on_the_same_links(tmp_path: Path) -> None:
    """Goal: FSDP2's and DDP's traffic takes the same links, through the same centre; digests are
    those that the arms have on one host, where two workers' sums have one order."""
    done = run_on_hosts(tmp_path, 2, arms="luwu,fsdp,ddp,single")
    check_counts(done)
    parameters = done.document["job"]["parameters"]
    for name, least in (("fsdp", 1.5), ("ddp", 1.0)):
        links = {each["link"]: each["kernel"] for each in done.arm(name)["host_links"]}
        for host in ("host-0", "host-1"):
            for way in ("up", "down"):
                assert links[host][way] > 0.9 * 6 * least * 4 * parameters, (name, host, way)
        assert links["node"]["up"] < 10_000
    assert done.arm("single")["host_links"] == []
    digests = {done.arm(name)["weights_digest"] for name in ("luwu", "fsdp", "ddp")}
    assert len(digests) == 1
    assert until_empty(veths) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "SIGKILL"])
def test_nothing_is_left(how: signal.Signals, tmp_path: Path) -> None:
    """I8. Goal: stopped by hand or killed outright, a run on hosts leaves no process, no socket,
    no namespace and no link."""
    outside = Outside(tmp_path / "outside")
    arguments = [
        "compare", "--run-dir", str(tmp_path / "run"), "--data", str(text_file(tmp_path)),
        "--arms", "luwu", "--hosts", "2", "--link", "100mbit", "--workers", "2",
        "--steps", "1000000", *SMALL,
    ]  # fmt: skip
    with Cluster(tmp_path, arguments, environ=outside.environ) as cluster:
        cluster.wait_for("node")
        assert veths() != []
        cluster.signal(how)
        cluster.wait()
        assert cluster.wait_until_clean() == []
        assert until_empty(veths, limit_s=5) == []
    assert outside.leftovers() == []


def test_a_link_has_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    """Goal: each end is shaped, the centre forwards, and the kernel counts what went through.
    Method: 3 MB from host to host at 100 Mbit/s through sockets of other processes."""
    log = tmp_path / "log"
    with Namespaces(2, 12.5e6, log=log, run_id="test") as namespaces:
        shaped = [
            namespaces._do(where, "tc", "qdisc", "show", "dev", device)
            for where, device in (("host-0", INTERFACE), ("centre", "l1"), ("centre", "l0"))
        ]
        assert all("tbf" in text and "rate 100Mbit" in text for text in shaped), shaped
        receive = (
            "import socket,sys;s=socket.create_server(('0.0.0.0',9));print('up',flush=True);"
            "c,_=s.accept();n=0\nwhile (d:=c.recv(1<<16)): n+=len(d)\nprint(n)"
        )
        send = (
            "import socket,time;b=bytes(3_000_000);"
            f"s=socket.create_connection(('{namespaces.address('host-1')}',9));"
            "t=time.monotonic();s.sendall(b);s.shutdown(1);s.recv(1);print(time.monotonic()-t)"
        )
        receiver = subprocess.Popen(
            [*namespaces.enter("host-1"), sys.executable, "-c", receive],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with receiver:
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "up\n"
            before = namespaces.counts()
            done = subprocess.run(
                [*namespaces.enter("host-0"), sys.executable, "-c", send],
                capture_output=True, text=True, timeout=30, check=True,
            )  # fmt: skip
            assert receiver.stdout.read() == "3000000\n"
        after = namespaces.counts()
        assert float(done.stdout) > 0.8 * 3e6 / 12.5e6  # bursts are ahead of the rate
        for host, way in (("host-0", "up"), ("host-1", "down")):
            moved = getattr(after[host].since(before[host]), way)
            assert 3e6 <= moved <= 1.03 * 3e6
    assert until_empty(veths) == []
