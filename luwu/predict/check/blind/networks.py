"""Rail-only networks, virtual functions by threads, slow and fast links, and a newer device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from luwu.predict.check.blind.rail_only import RailOnlySaving, rail_only_savings
from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from luwu.predict.model.job import TrainingJob
from luwu.predict.systems.training import predict_step
from luwu.predict.systems.zero import predict_sharded_step

_GROUP: Final = "Networks"
_ENDPOINTS: Final = 32768
_RADICES: Final = (64, 128, 256)
_DOMAINS: Final = (8, 16, 32, 64, 128, 256)
_VM_RATES: Final = (10.5, 37.1, 349.0)
_HOST_DEVICES: Final = 8


def rows(catalogue: Catalogue) -> Iterator[BlindRow]:
    """All of them."""
    yield from _rail_only(catalogue)
    yield _virtual_functions(catalogue)
    yield from _newer_device(catalogue)
    yield from _slow_links(catalogue)


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


def _newer_device(catalogue: Catalogue) -> Iterator[BlindRow]:
    """GPT-3 on 1,024 devices, an A100 in 16 bits over a B200 in 16 and in 8."""
    old = TrainingJob(
        model=catalogue.model("GPT-175B"), device=catalogue.device("A100-80"),
        network=catalogue.network("ib-hdr"), software=software("megatron-2023"), devices=1024,
        batch=2048, sequence=2048, tensor=8, pipeline=8, virtual=6, sequence_parallel=True,
        recompute="selective",
    )  # fmt: skip
    before = predict_step(old).seconds
    for precision in ("bf16", "fp8"):
        new = replace(
            old, device=catalogue.device("B200-180"), network=catalogue.network("ib-ndr"),
            software=software("nemo-2024"), precision=precision,
        )  # fmt: skip
        yield BlindRow(
            group=_GROUP, name=f"GPT-175B, A100 in bf16 to B200 in {precision}, speed-up",
            value=before / predict_step(new).seconds, unit="ratio",
            configuration={"model": "GPT-175B", "devices": 1024, "tensor": 8, "pipeline": 8,
                           "virtual": 6, "batch": 2048, "precision": precision},
            assumptions=("each with the software and the network of its time: Megatron of 2023 on "
                         "HDR, NeMo of 2024 on NDR", "the same parallel ranks"),
        )  # fmt: skip


def _slow_links(catalogue: Catalogue) -> Iterator[BlindRow]:
    """70B, states sharded over 64 devices, hosts of eight behind one virtual port each."""
    network = catalogue.network("sriov")
    job = TrainingJob(
        model=catalogue.model("Llama3-70B"), device=catalogue.device("H100-80"), network=network,
        software=software("torchtitan-2024"), devices=64, batch=64, sequence=4096,
        recompute="full",
    )  # fmt: skip
    for rate in _VM_RATES:
        port = replace(network, rate=rate * 1e9 / 8 / _HOST_DEVICES, stream_rate=None)
        seconds = predict_sharded_step(replace(job, network=port)).seconds
        for what, value, unit in (
            ("step time", seconds, "s"),
            ("throughput", job.tokens / seconds / job.devices, "token/s/device"),
        ):
            yield BlindRow(
                group=_GROUP, name=f"Llama3-70B, ZeRO-3, 64 x H100, {rate:g} Gbit/s a host, {what}",
                value=value, unit=unit,
                configuration={"model": "Llama3-70B", "devices": 64, "host_gbit_s": rate},
                assumptions=("eight devices share the port of a host", "one sequence of 4,096 "
                             "tokens a device, full recomputation", "kernels of PyTorch"),
            )  # fmt: skip
