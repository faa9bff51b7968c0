"""Rail-only networks against Clos networks, as the blind predictions have them."""

from __future__ import annotations

import pytest

from luwu.predict.check.blind.rail_only import (
    RailOnlySaving,
    all_to_all_overhead,
    rail_only_saving,
    rail_only_savings,
    switch_of_radix,
)
from tests.unit.test_predict_cost import LINK, NET, SWITCH


def saving(endpoints: int, domain: int, radix: int = 64) -> RailOnlySaving:
    return rail_only_saving(
        endpoints, domain, network=NET, switch=switch_of_radix(SWITCH, radix), link=LINK,
        domain_rate=450e9,
    )  # fmt: skip


def test_rail_only_saves_by_tiers() -> None:
    """Goal: n = 32,768, k = 64: domains of 8 save nothing, as rails still
    have three tiers; of 256, one tier: P (5 - 3) + 2 c of 5 P + 6 c; of 512, two."""
    none, one, two = saving(32_768, 8), saving(32_768, 256), saving(32_768, 512)
    assert (none.capex_saving, none.power_saving) == (0.0, 0.0)
    assert [each.tiers_rail for each in (none, one, two)] == [3, 2, 1]
    assert one.capex_saving == pytest.approx((2 + 2) / (5 + 6))
    assert two.capex_saving == pytest.approx((4 + 4) / (5 + 6))
    assert one.power_saving == pytest.approx((2 + 2) / (5 + 6))


def test_larger_radices_need_no_more_tiers() -> None:
    """Goal: over radices and domains, tiers never grow; a domain of 1 saves nothing anywhere."""
    found = rail_only_savings(
        32_768, radices=(16, 32, 64, 128), domains=(1, 8, 64), network=NET, switch=SWITCH,
        link=LINK, domain_rate=450e9,
    )  # fmt: skip
    assert len(found) == 12
    by = {(each.radix, each.domain): each for each in found}
    for radix in (16, 32, 64, 128):
        assert by[radix, 1].capex_saving == by[radix, 1].all_to_all_overhead == 0.0
        tiers = [by[radix, domain].tiers_rail for domain in (1, 8, 64)]
        assert tiers == sorted(tiers, reverse=True)
        savings = [by[radix, domain].capex_saving for domain in (1, 8, 64)]
        assert savings == sorted(savings)
    for domain in (1, 8, 64):
        tiers = [by[radix, domain].tiers_rail for radix in (16, 32, 64, 128)]
        assert tiers == sorted(tiers, reverse=True)


def test_rail_only_overhead_is_the_ratio_of_rates() -> None:
    """Goal: [(K-1)/K / domain rate] / [(N-K)/N / rate], near rate / domain rate for many large
    domains; none for domains of 1; less with a faster domain."""
    assert all_to_all_overhead(32_768, 8, 45e9, 450e9) == pytest.approx(
        7 / 8 / 450 / (32_760 / 32_768 / 45)
    )
    assert all_to_all_overhead(10**6, 1000, 45e9, 450e9) == pytest.approx(0.1, rel=0.01)
    assert all_to_all_overhead(64, 1, 45e9, 450e9) == 0.0
    assert all_to_all_overhead(64, 8, 45e9, 900e9) < all_to_all_overhead(64, 8, 45e9, 450e9)
