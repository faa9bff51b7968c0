"""What the exchange claims: ratios of arms of one case, the worst over the sizes that were run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.harness import Row

Case = dict[tuple[str, bool | None], float]
"""(arm, switch) -> seconds."""
Worst = Callable[[list[float]], float]

CLAIM_WORKERS = 4

MEANINGS = {
    "shm_over_fsdp": "float32, 4 workers: time of fsdp-gloo / time of luwu-shm; more is better",
    "shm_over_ddp": "float32, 4 workers: time of ddp-gloo / time of luwu-shm; more is better",
    "shm_of_floor": "float32, 4 workers: time of luwu-shm / time of memory-floor; less is better",
    "ipc_over_fsdp": "bfloat16, 4 workers: time of fsdp-gloo / time of luwu-ipc; more is better",
    "tcp_over_fsdp": "bfloat16, 4 workers: time of fsdp-gloo / time of luwu-tcp; more is better",
    "ipc_of_hub": "float32, 4 workers: (hub-ipc + page-update) / luwu-ipc --no-switch, the same "
    "star; more is better",
    "tcp_of_hub": "float32, 4 workers: (hub-tcp + page-update) / luwu-tcp --no-switch, the same "
    "star; more is better",
}
"""With the switch unless it says otherwise. Keys that end in `_no_switch` are the same without it,
keys with a dtype the same in that dtype. Each is the worst over the sizes of the run."""


def claims(rows: list[Row]) -> dict[str, float]:
    """Every claim whose arms were measured."""
    found: dict[str, float] = {}
    for dtype in ("float32", "bfloat16"):
        cases: dict[str, Case] = {}
        for each in rows:
            if each["job_workers"] == CLAIM_WORKERS and each["dtype"] == dtype:
                case = cases.setdefault(each["case"], {})
                case[each["arm"], each["switch"]] = each["seconds_median"]
        for name, home, worst, ratios in _ratios(list(cases.values())):
            if ratios:
                found[name if home == dtype else f"{name}_{dtype}"] = worst(ratios)
    return found


def _ratios(cases: list[Case]) -> Iterator[tuple[str, str, Worst, list[float]]]:
    """(name, dtype it is claimed for, which is the worst, a ratio for each case)."""
    for switch, ending in ((True, ""), (False, "_no_switch")):
        for transport, home in (("shm", "float32"), ("ipc", "bfloat16"), ("tcp", "bfloat16")):
            ours = (f"luwu-{transport}", switch)
            for other in ("fsdp", "ddp"):
                theirs = (f"{other}-gloo", None)
                ratios = [c[theirs] / c[ours] for c in cases if theirs in c and ours in c]
                yield f"{transport}_over_{other}{ending}", home, min, ratios
            floor = ("memory-floor", None)
            ratios = [c[ours] / c[floor] for c in cases if floor in c and ours in c]
            yield f"{transport}_of_floor{ending}", "float32", max, ratios
    for transport in ("ipc", "tcp"):
        ours, hub, update = (
            (f"luwu-{transport}", False), (f"hub-{transport}", None), ("page-update", None),
        )  # fmt: skip
        ratios = [(c[hub] + c[update]) / c[ours] for c in cases if {ours, hub, update} <= set(c)]
        yield f"{transport}_of_hub", "float32", min, ratios
