"""The estimate: bytes by hand, refusals, that measuring leaves nothing, and what limited steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.commands.main import main
from luwu.estimate.job import Job
from luwu.estimate.plan import Estimate, estimate
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description
from switch_emu.node.plan import plan_node
from switch_emu.node.spec import NodeSpec
from switch_emu.store import Durability
from switch_emu.switch.plan import plan_switch

KIB, MIB, GIB = 1024, 1024**2, 1024**3
CHUNK = 64 * KIB
ELEMS = CHUNK // 4
UNITS = 4
P = UNITS * 8 * ELEMS
"""Parameters: four units of eight whole chunks."""


def units(*, dtype: str = "float32", frozen: Collection[int] = ()) -> Layout:
    return Layout(
        parameters=tuple(
            Parameter(name=f"{i}", shape=(8 * ELEMS,), wire_dtype=dtype, trainable=i not in frozen)
            for i in range(UNITS)
        ),
        units=tuple(Unit(name=f"{i}", parameters=(i,)) for i in range(UNITS)),
        chunk_bytes=CHUNK,
    )


def job(
    layout: Layout | None = None, *, transport: str = "ipc", update: str = "streaming",
    state: Path | None = Path("state"), durability: Durability = "step", budget_bytes: int = GIB,
    switch_bytes: int | None = None, stays: Sequence[int] = (), may_be_clipped: bool = False,
    hosts: int = 1, **plans: int,
) -> Job:  # fmt: skip
    """A job; `plans`: bytes of the node's plan, and of the cache of weights of the switch, of each
    host where there are several."""
    layout = layout or units()
    node = NodeSpec(
        job=1, listen="", summary=Path(), state=state, durability=durability, world_size=2,
        memory_budget_bytes=budget_bytes, chunk_bytes=CHUNK, arena_bytes=int(transport == "shm"),
    )  # fmt: skip
    switch = plan_switch(
        budget_bytes=switch_bytes, child_count=2, extent_bytes=CHUNK, in_arenas=transport == "shm"
    )
    cache_bytes = plans.pop("cache_bytes", 0)
    return Job(
        description=Description(
            layout=layout, optimizer="adamw", update=update, state_fields=("m", "v")
        ),
        stays=stays, may_be_clipped=may_be_clipped, node=node, transport=transport,
        plan=dataclasses.replace(
            node.plan(), **{"resident_bytes": 0, "sums_bytes": 1 << 40, **plans}
        ),
        switch=dataclasses.replace(switch, cache_bytes=cache_bytes),
        hosts=hosts,
        on_host=dataclasses.replace(switch, cache_bytes=cache_bytes) if hosts > 1 else None,
    )  # fmt: skip


def use(found: Estimate, name: str) -> tuple[float, float]:
    """Bytes a parameter, read and written."""
    each = next(each for each in found.disk if each.name == name)
    return each.read_bytes / P, each.written_bytes / P


def links(found: Estimate) -> dict[str, tuple[float, float]]:
    """Bytes a parameter, into and out of each process."""
    return {each.role: (each.into_bytes / P, each.out_of_bytes / P) for each in found.links}


def test_out_of_core_reads_and_writes_12_bytes_a_parameter() -> None:
    """Nothing is resident: all of a record is read and written, and weights again by each pull but
    those of the first two units, which come with their updates."""
    found = estimate(job())
    assert use(found, "updates") == (12, 12)
    assert use(found, "pulls") == (2 + 4, 0)
    assert use(found, "spilled sums") == (0, 0)
    assert found.disk_read_bytes == 18 * P
    assert 12 * P < found.disk_written_bytes < 12 * P + 64 * KIB  # the manifest
    assert 24 * P < sum(found.disk_space_bytes.values()) < 24 * P + 2 * MIB


def test_without_resharding_weights_are_pulled_once() -> None:
    found = estimate(job(stays=range(UNITS)))
    assert use(found, "pulls") == (2, 0)
    assert links(found) == {"worker": (4, 4), "switch": (12, 12), "node": (4, 4)}


def test_resident_pages_are_written_and_never_read() -> None:
    """Goal: with all pages in RAM an eighth of them is written a step, and of the others sums."""
    found = estimate(job(resident_bytes=GIB))
    assert found.resident_pages_ratio == 1
    assert (use(found, "updates"), use(found, "log of sums")) == ((0, 12 / 8), (0, 4 * 7 / 8))
    assert found.disk_read_bytes == 0
    assert 32 * P < found.disk_space_bytes["log of sums"] < 32 * P + 8 * MIB
    half = estimate(job(resident_bytes=16 * (12 * ELEMS + 64)))
    assert half.resident_pages_ratio == 0.5
    assert use(half, "updates") == (6, 12)
    assert use(half, "pulls") == (2 + 2, 0)


def test_weights_that_the_switch_caches_are_read_once() -> None:
    """Goal: of what is cached only updates read, and it leaves the node once. Method: by hand; all
    of the weights, then half of them: the last two units, beside pages of the first that stay."""
    every = estimate(job(cache_bytes=4 * P))
    assert every.cached_ratio == 1
    assert use(every, "updates") == (12, 12)
    assert use(every, "pulls") == (0, 0)
    assert links(every) == {"worker": (8, 4), "switch": (12, 20), "node": (4, 4)}
    half = estimate(job(cache_bytes=2 * P, resident_bytes=8 * (12 * ELEMS + 64)))
    assert half.cached_ratio == 0.5
    assert use(half, "pulls") == (1, 0), "the second unit alone"
    assert any("weights are sent, 50% by the switch alone" in line for line in half.details)
    in_place = estimate(job(cache_bytes=4 * P, transport="shm", resident_bytes=16 * P + 4 * KIB))
    assert in_place.weights_in_place
    assert in_place.cached_ratio == 0


def test_weights_that_the_switch_of_a_host_caches_pass_its_link_once() -> None:
    """Goal: of two hosts with a worker each, what has no room passes the link twice, and is pulled
    from the node once if the switch above has it; a unit that stays is pulled once."""
    none = estimate(job(hosts=2))
    assert links(none) == {
        "worker": (8, 4), "link of a host": (8, 4), "switch": (16, 20), "node": (4, 8)
    }  # fmt: skip
    half = estimate(job(hosts=2, cache_bytes=2 * P))
    assert half.host is not None
    assert (half.host.weights_twice_bytes, links(half)["link of a host"]) == (2 * P, (6, 4))
    assert links(half)["node"] == (4, 6), "the same half is cached above"
    every = estimate(job(hosts=2, cache_bytes=4 * P))
    assert every.host is not None
    assert (every.host.weights_twice_bytes, links(every)["link of a host"]) == (0, (4, 4))
    staying = estimate(job(hosts=2, stays=[0, 1]))
    assert staying.host is not None
    assert staying.host.weights_twice_bytes == 2 * P
    assert staying.host.enough_memory_bytes == every.host.enough_memory_bytes - 2 * P
    assert any("of the weights pass the link of a host twice" in line for line in half.details)


def test_a_state_in_ram_has_no_disk() -> None:
    found = estimate(job(state=None, transport="shm", resident_bytes=GIB))
    assert (found.disk_read_bytes, found.disk_written_bytes) == (0, 0)
    assert found.disk_space_bytes == {}
    assert found.line.endswith("; no disk")
    node = next(each.nbytes for each in found.memory if each.role == "node")
    assert node < GIB, "no more pages are counted than there are"


def test_weights_in_shared_memory_are_not_read_from_disk() -> None:
    """Two places of 4 bytes, and their table, fit half of what pages may take: the tier gets the
    other half."""
    found = estimate(job(transport="shm", resident_bytes=16 * P + 4 * KIB))
    assert found.weights_in_place
    assert found.resident_pages_ratio < 1
    assert use(found, "updates")[0] > 0
    assert use(found, "pulls") == (0, 0)
    assert links(found)["worker"][0] == 4


def test_sums_beyond_the_plan_are_spilled() -> None:
    """`at_step`: each sum of 4 bytes a parameter waits; in shared memory too. So they do where a
    step that streams may be clipped, and its updates hand no weights out."""
    for transport in ("ipc", "shm"):
        shape = job(update="at_step", transport=transport, sums_bytes=P, stays=range(UNITS))
        found = estimate(shape)
        assert use(found, "spilled sums") == (3, 3)
        assert use(found, "pulls") == (0, 0)  # handed out: the disk is slower
        assert found.disk_space_bytes["spilled sums"] == 4 * P
    assert use(estimate(job(transport="shm", sums_bytes=P)), "spilled sums") == (0, 0)
    clipped = estimate(job(sums_bytes=P, may_be_clipped=True, stays=range(UNITS)))
    assert (use(clipped, "spilled sums"), use(clipped, "pulls")) == ((3, 3), (4, 0))


def test_bfloat16_halves_links_not_the_store() -> None:
    found = estimate(job(units(dtype="bfloat16")))
    assert use(found, "updates") == (12, 12)
    assert links(found)["worker"] == (4, 2)


def test_a_frozen_unit_is_pulled_and_never_updated() -> None:
    found = estimate(job(units(frozen=[3])))
    assert use(found, "updates") == (9, 9)
    assert use(found, "pulls") == (2 + 4, 0)


def test_what_does_not_fit_is_refused_with_the_number_that_would() -> None:
    def in_ram(budget_bytes: int) -> Job:
        plan = plan_node(
            budget_bytes=budget_bytes, chunk_bytes=CHUNK, world_size=2, has_switch=True
        )
        return dataclasses.replace(job(state=None, budget_bytes=budget_bytes), plan=plan)

    with pytest.raises(ConfigError, match="two sides of the state") as caught:
        estimate(in_ram(4 * MIB))
    enough = re.search(r"give (\d+)KiB", str(caught.value))
    assert enough is not None
    estimate(in_ram(int(enough[1]) * KIB))
    with pytest.raises(ConfigError, match="are free; name a directory"):
        estimate(job(), free_bytes=P)


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_the_budget_of_the_switch_is_planned(transport: str) -> None:
    """Goal: a larger budget of the switch shows in the switch, which may hold sums for all of it,
    and in the arenas that it sizes."""

    def memory(switch_bytes: int) -> dict[str, int]:
        found = estimate(job(transport=transport, switch_bytes=switch_bytes))
        return {"all": found.memory_bytes, **{use.role: use.nbytes for use in found.memory}}

    small, large = memory(3 * MIB), memory(6 * MIB)
    grown = {role: large[role] - small[role] for role in large if large[role] != small[role]}
    if transport == "shm":  # each worker's is a third of it
        assert grown == {"switch": 3 * MIB, "arenas": MIB, "all": 3 * MIB + 2 * MIB}
    else:
        assert grown == {"switch": 3 * MIB, "all": 3 * MIB}


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("--memory-budget 1KiB -m workers.train", "give at least"),
        (
            "--durability none --memory-budget 2MiB -m workers.train --arm luwu --layers 2",
            "two sides of the state",
        ),
        ("--optimizer-nodes 2 -m workers.train", "only one node is planned, not 2"),
        ("--nonsense", "no flag --nonsense"),
        ("--layers 2 train.py", "no flag --layers; it belongs to luwu compare"),
        ("--workers 2", "missing argument"),
    ],
)
def test_the_command_refuses_what_cannot_work(
    tokens: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", *tokens.split()]) == 2
    assert said in capsys.readouterr().err
