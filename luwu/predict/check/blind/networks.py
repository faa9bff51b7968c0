"""Rail-only networks, and virtual functions by threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from luwu.predict.check.blind.rail_only import RailOnlySaving, rail_only_savings
from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.hardware.catalogue import Catalogue

_GROUP: Final = "Networks"
_ENDPOINTS: Final = 32768
_RADICES: Final = (64, 128, 256)
_DOMAINS: Final = (8, 16, 32, 64, 128, 256)


def rows(catalogue: Catalogue) -> Iterator[BlindRow]:
    """All of them."""
    yield from _rail_only(catalogue)
    yield _virtual_functions(catalogue)


def _rail_only(catalogue: Catalogue) -> Iterator[BlindRow]:
    """Ranges of saving, of those that save anything, and what exchanges pay for it."""
    device = catalogue.device("H100-80")
    assert device.domain_rate is not None
    found = rail_only_savings(
        _ENDPOINTS, radices=_RADICES, domains=_DOMAINS, network=catalogue.network("ib-ndr"),
        switch=catalogue.switch("QM9700"), link=catalogue.link("400G"),
        domain_rate=device.domain_rate,
    )  # fmt: skip
    better = [each for each in found if each.tiers_rail < each.tiers_full]
    configuration = {"endpoints": _ENDPOINTS, "radices": _RADICES, "domains": _DOMAINS}
    assumed = ("32,768 endpoints of 400 Gbit/s, prices and power of a QM9700 port and a 400G link",
               "of the combinations, those whose rails need fewer tiers")  # fmt: skip
    for what, least, most in (
        ("capex", *_range([each.capex_saving for each in better])),
        ("power", *_range([each.power_saving for each in better])),
    ):
        for end, value in (("least", least), ("most", most)):
            yield BlindRow(
                group=_GROUP, name=f"rail-only over full-bisection Clos, saving of {what}, {end}",
                value=value, unit="share", configuration=configuration, assumptions=assumed,
            )  # fmt: skip
    yield _all_to_all(found)
    yield BlindRow(
        group=_GROUP, name="rail-only over full-bisection Clos, time of a dense training step",
        value=1.0, unit="ratio", configuration=configuration,
        assumptions=("tensor parallel ranks in a domain, data and pipeline exchanges in a rail: "
                     "nothing changes rails over the network",),
    )  # fmt: skip


def _all_to_all(found: list[RailOnlySaving]) -> BlindRow:
    widest = max(found, key=lambda each: each.domain)
    return BlindRow(
        group=_GROUP, name="rail-only over full-bisection Clos, longer all-to-all of MoE",
        value=widest.all_to_all_overhead, unit="share",
        configuration={"endpoints": _ENDPOINTS, "domain": widest.domain},
        assumptions=("domains at 450 GB/s, ports at 400 Gbit/s", f"domains of {widest.domain}; in "
                     "the domain first, then in the rail, one after the other"),
    )  # fmt: skip


def _range(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _virtual_functions(catalogue: Catalogue) -> BlindRow:
    network = catalogue.network("sriov")
    assert network.stream_rate is not None
    rate = min(network.rate, 24 * network.stream_rate)
    return BlindRow(
        group=_GROUP, name="SR-IOV, 24 threads", value=rate * 8e-9, unit="Gbit/s",
        configuration={"network": "sriov", "threads": 24},
        assumptions=("threads add up until the port is full",),
    )  # fmt: skip
