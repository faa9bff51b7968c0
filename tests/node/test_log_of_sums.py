"""The log of sums of a node: what a killed node's last steps made is made again, bit for bit."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import luwu
from luwu.base import directories
from luwu.base.errors import LuwuError, StateError, StoreFullError
from luwu.base.json_file import read_json, write_json
from luwu.checkpoint.refill import refill
from luwu.commands.main import main
from luwu.launch.local_cluster import LocalCluster
from luwu.launch.nodes import fold_nodes
from luwu.launch.processes.run_directory import RunDirectory
from luwu.nic.shell import Nic
from switch_emu.node import page_updates, pipeline, placement
from switch_emu.node.page_updates import PageUpdates, redo_of
from switch_emu.store import FilePageStore
from switch_emu.store.sums import SUMS_NAME
from tests.helpers.exports import export, train
from tests.helpers.local_job import MIB, Job, Worker, cluster_for, make_layout, plain
from tests.helpers.real_training import sharded
from tests.helpers.small_models import Stack, batch
from tests.helpers.training_harness import alone, one_thread  # noqa: F401 - for every test here
from tests.suites.store_suite import contents

STEPS = 6
SLOTS = 4


def muon(model: torch.nn.Module) -> Any:
    """Matrices are updated as a whole."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = {"params": [p for p in model.parameters() if p.ndim != 2], "use_muon": False}
    return luwu.optim.Muon([{"params": matrices}, others], lr=0.02)


OPTIMIZERS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "clipped": lambda model: luwu.optim.AdamW(model.parameters(), lr=1e-2, max_grad_norm=0.1),
    "streaming": lambda model: luwu.optim.AdamW(model.parameters(), lr=1e-2, update="streaming"),
    "streaming, clipped": lambda model: luwu.optim.AdamW(
        model.parameters(), lr=1e-2, update="streaming", max_grad_norm=0.1
    ),
    "few bits": lambda model: luwu.optim.AdamW(
        model.parameters(), lr=1e-2, state_dtype="int8", master_dtype="bfloat16"
    ),
    "averaged": lambda model: luwu.optim.AdamW(model.parameters(), lr=1e-2, average=luwu.ema(0.9)),
    "sgd": lambda model: luwu.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
    "lion": lambda model: luwu.optim.Lion(model.parameters(), lr=1e-3),
    "muon": muon,
}


@pytest.mark.feature("a log of sums beside a state in RAM")
@pytest.mark.parametrize(
    ("name", "has_switch"),
    [*((name, True) for name in OPTIMIZERS), ("streaming, clipped", False), ("muon", False)],
)
def test_steps_are_made_again_bit_for_bit(name: str, has_switch: bool, tmp_path: Path) -> None:
    """I2, I3, P9. Goal: a killed node's pages and sums are the records that it had in RAM, whatever
    the optimizer. Method: copy the directory when all is decided, before the node ends; its end
    writes all pages."""
    state, image = tmp_path / "state", tmp_path / "image"

    def worker(nic: Nic) -> None:
        luwu.init(nic=nic, device="cpu")
        model = sharded(Stack)
        optimizer = OPTIMIZERS[name](model)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(batch(step, nic.rank, 0)).square().mean().backward()
            optimizer.step()
        luwu.finish()

    with alone(), LocalCluster(
        world_size=2, state=state, memory_budget_bytes=64 * MIB, chunk_bytes=32 * 1024,
        summary=tmp_path / "summary.json", has_switch=has_switch, log_steps=SLOTS,
    ) as cluster:  # fmt: skip
        cluster.run(worker)
        cluster.wait_until_served()
        shutil.copytree(state, image)
    with (
        FilePageStore.open(state, read_only=True) as settled,
        FilePageStore.open(image, read_only=True) as killed,
    ):
        pages = range(killed.config.page_count)
        assert not any(settled.lacking(page, STEPS) for page in pages)
        most = max(len(killed.lacking(page, STEPS)) for page in pages)
        assert most == SLOTS - 1
        killed.redo = redo_of(killed.config)
        assert contents(killed, STEPS) == contents(settled, STEPS)


def killed_state(job: Job, tmp_path: Path, stop_at: int, **changes: Any) -> Path:
    """The directory of a job whose nodes were killed after so many steps."""
    state, image = tmp_path / "state", tmp_path / "image"
    with cluster_for(job, tmp_path, state=state, **changes) as cluster:
        cluster.run(Worker(job, stop_at=stop_at))
        cluster.wait_until_served()
        shutil.copytree(state, image)
    return image


def test_a_killed_state_is_exported_verified_and_continued(tmp_path: Path) -> None:
    """I2, I3. Goal: export, snapshot and verify take a killed state as it is, and training goes on
    from it to the weights of the plain loop."""
    job = Job()
    image = killed_state(job, tmp_path, 3)
    before = {path.name: path.read_bytes() for path in image.iterdir()}
    exported = export(image, tmp_path / "export")
    assert exported.step == 3
    assert main(["verify", str(image), "--full"]) == 0
    assert main(["snapshot", str(image), str(tmp_path / "snapshot")]) == 0
    assert {path.name: path.read_bytes() for path in image.iterdir()} == before
    assert not (tmp_path / "snapshot" / SUMS_NAME).exists()
    expected = plain(job).digest
    for state in (image, tmp_path / "snapshot"):
        assert train(job, state, tmp_path) == expected


@pytest.mark.parametrize(("count", "replicas"), [(2, 1), (3, 2)])
def test_each_of_several_nodes_has_a_log(count: int, replicas: int, tmp_path: Path) -> None:
    """I2, I3. Goal: killed, several nodes are exported, copied, made again from their replicas and
    go on, to the weights of the plain loop; killed after the last step, a run has their digest."""
    job = Job(layout=replace(make_layout(), optimizer_nodes=count))
    nodes = {"optimizer_nodes": count, "replicas": replicas}
    image = killed_state(job, tmp_path, 3, **nodes)
    for number in range(count):
        with FilePageStore.open(image / f"node-{number}", read_only=True) as store:
            pages = range(store.config.page_count)
            assert any(store.lacking(page, 3) for page in pages)
    exported = export(image, tmp_path / "export")
    assert exported.step == 3
    assert main(["snapshot", str(image), str(tmp_path / "snapshot")]) == 0
    run = RunDirectory(tmp_path / "run")
    sizes = ("node_state_bytes", "disk_space_bytes", "memory_budget_bytes", "resident_bytes",
             "schema", "steps", "chunk_bytes", "spilled_count")  # fmt: skip
    counts: tuple[str, ...] = ("disk_bytes", "spill_bytes", "network_bytes")
    run.result("").mkdir(parents=True)
    for number in range(count):
        found = {name: 0 for name in sizes} | {name: {} for name in counts}
        write_json(run.result(f"node-{number}.json"), found)
    fold_nodes(run, image, count)
    assert read_json(run.result("node.json"))["weights_digest"] == exported.weights_digest
    if replicas > 1:
        shutil.rmtree(image / "node-1")
        assert refill(image).version == 3
    expected = plain(Job()).digest
    for state in (image, tmp_path / "snapshot"):
        with cluster_for(job, tmp_path, state=state, resume=True, **nodes) as cluster:
            cluster.run(Worker(job))
        assert export(state, tmp_path / f"of-{state.name}").weights_digest == expected


def test_another_arithmetic_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3. Goal: a step is never made again by what may give other bits; the error names both."""
    job = Job()
    image = killed_state(job, tmp_path, 3)
    monkeypatch.setattr(page_updates, "_torch_version", lambda: "9.9")
    with pytest.raises(StateError, match=r"made by .*, torch 2\..* again by .*, torch 9\.9"):
        train(job, image, tmp_path)


@pytest.fixture(autouse=True)
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of tests may be in memory, which is no place for a log."""
    monkeypatch.setattr(placement, "memory_kind", lambda _: None)


def test_a_state_in_memory_has_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: on tmpfs nothing takes more memory than the pages do."""
    monkeypatch.setattr(placement, "memory_kind", lambda _: "tmpfs")
    train(Job(), tmp_path / "state", tmp_path)
    assert not (tmp_path / "state" / SUMS_NAME).exists()


@pytest.mark.parametrize("changes", [{"log_steps": 1}, {"memory_budget_bytes": MIB}])
def test_without_room_or_wish_the_log_goes(changes: dict[str, Any], tmp_path: Path) -> None:
    """I2. Goal: a killed state goes on without a log, by the flag or as its pages do not fit."""
    job = Job()
    image = killed_state(job, tmp_path, 3)
    with cluster_for(job, tmp_path, state=image, resume=True, **changes) as cluster:
        cluster.run(Worker(job))
        assert cluster.weights_digest() == plain(job).digest
        assert not (image / SUMS_NAME).exists()


def test_a_disk_without_room_for_the_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the error comes before a directory is made, and names the flag."""
    monkeypatch.setattr(directories, "free_bytes", lambda _: 1)
    with pytest.raises(LuwuError, match="--log-steps") as caught:
        train(Job(), tmp_path / "state", tmp_path)
    assert isinstance(caught.value, StoreFullError)
    assert not list((tmp_path / "state").glob("*.dat"))


@pytest.mark.parametrize("changes", [{}, {"state": None}, {"log_steps": 1}])
@pytest.mark.parametrize("short_elems", [0, 1 << 20])
def test_the_loop_updates_what_is_short(
    short_elems: int, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: a node's loop updates short extents in RAM itself, and leaves to threads whatever
    is long or waits for a disk, as pages do whose turn it is to be written; the bits are equal."""
    monkeypatch.setattr(pipeline, "_SHORT_ELEMS", short_elems)
    apply, names = PageUpdates.apply, Counter[bool]()

    def counted(*given: Any, **named: Any) -> Any:
        names[threading.current_thread().name == "luwu-update"] += 1
        return apply(*given, **named)

    monkeypatch.setattr(PageUpdates, "apply", counted)
    job = Job()
    with cluster_for(job, tmp_path, **({"state": tmp_path / "state"} | changes)) as cluster:
        cluster.run(Worker(job))
        assert cluster.weights_digest() == plain(job).digest
    assert (names[False] > 0) == (short_elems > 0 and "log_steps" not in changes)
    assert (names[True] > 0) == (short_elems == 0 or "state" not in changes)
