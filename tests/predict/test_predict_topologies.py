"""Networks between hosts: counts by hand, and laws of what ranks have of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Network
from luwu.predict.networks.choice import Built
from luwu.predict.networks.topologies import IN_NETWORK, AggregationTree, Clos, RankGroup

NET = Network(name="net", rate=50e9, efficiency=0.9, latency_s=4e-6, hop_s=200e-9)
RATE = 45e9
COLLECTIVES = ("all_gather", "all_reduce", "send", "all_to_all")


def clos(endpoints: int, radix: int, **more: Any) -> Clos:
    return Clos(endpoints=endpoints, radix=radix, network=NET, **more)


def tree(endpoints: int, fan_in: int, nodes: int = 0) -> AggregationTree:
    return AggregationTree(endpoints=endpoints, fan_in=fan_in, network=NET, optimizer_nodes=nodes)


def of(size: int, stride: int = 1) -> RankGroup:
    return RankGroup(size=size, stride=stride)


# ---------------------------------------------------------------------- what they are made of


@pytest.mark.parametrize(
    ("hosts", "radix", "switches", "tiers"),
    [(32_768, 64, 2560, 3), (65_536, 64, 5120, 3), (2048, 64, 96, 2), (2049, 64, 163, 3),
     (64, 64, 1, 1), (65, 64, 5, 2), (16, 4, 20, 3), (32, 4, 56, 4), (1, 64, 0, 0), (2, 64, 1, 1)],
)  # fmt: skip
def test_predict_laws_clos_sizes(hosts: int, radix: int, switches: int, tiers: int) -> None:
    """S2, S3. Goal: (2t - 1) n/k switches; the smallest t with 2 (k/2)^t >= n; one host needs
    none."""
    network = clos(hosts, radix)
    assert network.inventory.switches == switches
    assert len(network.tiers) == tiers
    if hosts % radix == 0:
        assert switches == (2 * tiers - 1) * hosts // radix
        assert network.inventory.links == tiers * hosts


# ---------------------------------------------------------------------- what a rank has of them


@pytest.mark.parametrize(
    ("network", "group", "ring", "spread"),
    [
        (clos(32, 8), of(8, 4), 1, 1),
        (clos(48, 8, tapers=(3.0,)), of(8, 6), 1 / 3, 1 / 3),
        (clos(48, 8, tapers=(3.0,)), of(24, 2), 1, 23 / 63),
        (clos(48, 8, tapers=(3.0,)), of(6), 1, 1),
        (clos(192, 8, tapers=(3.0, 1.0)), of(32, 6), 1 / 3, 1 / 3),
        (tree(27, 3), of(9, 3), 1 / 3, 4 / 27),
    ],
    ids=repr,
)
def test_predict_laws_shares_of_ports(
    network: Clos | AggregationTree, group: RankGroup, ring: float, spread: float
) -> None:
    """S5, S6. Goal: the share of a port in a ring and in all-to-all, counted by hand: uplinks of a
    block over the flows that leave it while all groups work."""
    shares = [network.connection(group, each).rate / RATE for each in ("all_gather", "all_to_all")]
    assert shares == pytest.approx([ring, spread])


@pytest.mark.parametrize("network", [clos(32, 8), clos(128, 8), clos(16, 4), clos(8, 8)], ids=repr)
def test_predict_laws_taper_of_one_is_full_bisection(network: Clos) -> None:
    """S6. Goal: without tapers no group nor exchange is slower than its ports."""
    n = network.endpoints
    for size, stride in ((n, 1), (2, n // 2), (n // 2, 2), (3, 2), (5, 1)):
        for collective in COLLECTIVES:
            assert network.connection(of(size, stride), collective).rate == pytest.approx(RATE)


ANY: list[Built] = [
    clos(96, 8, tapers=(3.0, 1.0), aggregates=True),
    clos(96, 8, rails=4),
    tree(96, 4),
]


@pytest.mark.parametrize("topology", ANY, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("collective", [*COLLECTIVES, *IN_NETWORK])
def test_predict_laws_more_bandwidth_is_never_slower(topology: Any, collective: str) -> None:
    """Goal: twice the port rate, no exchange is slower, and no rank has more than it asks for;
    one rank exchanges nothing; what a network cannot do is refused, never guessed."""
    faster = replace(topology, network=replace(NET, rate=2 * NET.rate))
    ranks = of(96)
    sums = isinstance(topology, AggregationTree) or getattr(topology, "aggregates", False)
    if collective in IN_NETWORK and not sums:
        with pytest.raises(ConfigError, match="needs switches that sum"):
            topology.connection(ranks, collective)
        return
    slow, fast = (each.connection(ranks, collective) for each in (topology, faster))
    assert 0 < slow.rate <= fast.rate
    assert slow.latency_s == fast.latency_s > 0
    alone = topology.connection(of(1), collective)
    assert (alone.hops, alone.latency_s) == (0, 0.0)


def test_predict_laws_latency_grows_with_the_tiers_crossed() -> None:
    """Goal: one switch within a leaf, three across leaves, five across pods."""
    network = clos(128, 8)
    hops = [network.connection(group, "send").hops for group in (of(4), of(16), of(128))]
    assert hops == [1, 3, 5]
    assert network.connection(of(128), "send").latency_s == pytest.approx(4e-6 + 5 * 200e-9)
    assert network.connection(of(2, 64), "send").hops == 5
