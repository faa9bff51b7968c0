"""Hosts on one machine: who stands where, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.base.links import parse_links
from luwu.base.tree import leaves_per_group, one_switch
from luwu.launch.hosts import namespaces
from luwu.launch.hosts.hosts import Plan, plan_hosts, spread
from luwu.launch.hosts.network import host_link_rate, links_of


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is checked here does not depend on this machine's rights."""
    monkeypatch.setattr("luwu.launch.hosts.hosts.check_namespaces", lambda: None)


def test_workers_are_spread_in_order() -> None:
    """Goal: every rank on one host, as many on each as on the others, or one more."""
    assert spread(8, 2) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert [len(group) for group in spread(7, 3)] == [2, 2, 3]
    assert spread(2, 2) == ((0,), (1,))


def test_a_leaf_switch_stands_on_the_host_of_its_workers(tmp_path: Path) -> None:
    """Goal: several workers on a host get a leaf there; what sums several hosts is the centre."""
    plan = plan_hosts(RunConfig(workers=4, hosts=2, link=parse_links("1gbit")))
    assert plan is not None
    assert plan.tree == leaves_per_group([(0, 1), (2, 3)])
    assert [plan.where(name) for name in ("node", "switch", "switch-host-1")] == [
        "node", "centre", "host-1",
    ]  # fmt: skip
    alone = plan_hosts(RunConfig(workers=2, hosts=2))
    assert alone is not None
    assert alone.tree == one_switch(2)
    file = tmp_path / "tree.toml"
    file.write_text(
        '[t]\nparent="node"\n[m]\nparent="t"\nworkers="1-2"\n[h]\nparent="m"\nworkers="0"\n'
        '[k]\nparent="t"\nworkers="3"'
    )
    own = plan_hosts(RunConfig(workers=4, hosts=2, tree=file))
    assert own is not None
    assert {place.name: own.where_switch(place) for place in own.tree} == {
        "t": "centre", "m": "centre", "h": "host-0", "k": "host-1",
    }  # fmt: skip


def test_the_root_is_the_centre_even_of_one_host() -> None:
    """Goal: the root never shares a host, so that the host's link is used."""
    plan = Plan(((0, 1),), one_switch(2))
    assert plan.where("switch") == "centre"
    assert plan_hosts(RunConfig()) is None


BAD = {
    "more hosts than workers": ({"hosts": 3}, "give at most --hosts 2, or --workers 3"),
    "shared memory between hosts": (
        {"hosts": 2, "transport": "shm"}, "does not lead from host to host",
    ),
    "no switch": ({"hosts": 2, "no_switch": True}, "the centre of the hosts is a switch"),
    "a loss": ({"hosts": 2, "loss": 0.1}, "loss: .* neither delay, jitter, loss nor queues"),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "said"), BAD.values(), ids=BAD.keys())
def test_bad_network_hosts_that_cannot_be(keys: dict[str, object], said: str) -> None:
    """I6. Goal: refused before anything starts, with what would work."""
    with pytest.raises(ConfigError, match=said):
        plan_hosts(RunConfig(**keys))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["1gbit,delay=1ms", "loss=0.1", "100gbe", "worker=1gbit;node=2gbit", "worker.up=1gbit"]
)
def test_bad_network_links_that_the_kernel_cannot_make(text: str) -> None:
    """I6. Goal: what tbf has no word for is refused with --hosts, with what works."""
    with pytest.raises(ConfigError, match=r"one rate for all .*; write --link 1gbit"):
        plan_hosts(RunConfig(hosts=2, link=parse_links(text)))


def test_the_links_of_hosts_are_the_kernels_alone() -> None:
    """Goal: with --hosts no link is emulated in a process too, and dilation slows the kernel's."""
    config = RunConfig(hosts=2, link=parse_links("1gbit"), dilation=4.0)
    assert links_of(config).is_ideal
    assert host_link_rate(config) == 125e6 / 4
    assert host_link_rate(RunConfig(hosts=2)) is None
    assert host_link_rate(RunConfig(link=parse_links("100gbe"), loss=0.1)) is None


def test_bad_network_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """I6. Goal: without iproute2 the error names the tools, the packages and another way."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match=r"ip and tc .*install iproute2.*Without --hosts"):
        namespaces.check_namespaces()


@pytest.mark.parametrize("uid", [0, 1000])
def test_bad_network_missing_privileges(
    uid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6. Goal: where the system refuses a namespace, the error says what to allow.
    Method: an `unshare` that fails as util-linux's does where the system call is forbidden."""
    for tool in namespaces.TOOLS:
        (tmp_path / tool).write_text(
            "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
        )
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: uid)
    wanted = "--cap-add SYS_ADMIN" if uid == 0 else "run as root, or allow user namespaces"
    with pytest.raises(ConfigError, match=rf"Operation not permitted.*{wanted}.*Without --hosts"):
        namespaces.check_namespaces()
