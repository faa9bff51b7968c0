"""Training scripts of several ranks, in threads, through a real switch, node and transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import luwu
from luwu.base.digest import WeightsDigest
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from tests.helpers.small_models import Stack, batch, shard
from tests.helpers.training_harness import alone

KIB, MIB = 2**10, 2**20
_making = threading.RLock()  # ranks share torch's random generator


@dataclass(frozen=True)
class Trained:
    """What a cluster came to."""

    results: Sequence[Any]
    """By rank."""
    digest: str
    """Digest of the decided weights; empty if there are none, or several nodes hold them."""
    counts: Mapping[str, int]
    """Counters of the first node."""


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> nn.Module:
    """`make()` with random numbers of its own."""
    with _making, torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def sharded(make: Callable[[], nn.Module] = Stack, seed: int = 7, **arguments: Any) -> Any:
    """A seeded model whose blocks are units."""
    model = seeded(make, seed)
    shard(model, **arguments)
    return model


def train_steps(model: Any, optimizer: Any, first: int, last: int, rank: int = 0) -> None:
    """Steps of a loop over one rank's batches."""
    for step in range(first, last):
        optimizer.zero_grad()
        model(batch(step, rank, 0)).square().mean().backward()
        optimizer.step()


def digests(model: nn.Module, optimizer: Any) -> tuple[str, str]:
    """Digests of the weights and of the moments."""
    state = luwu.get_optimizer_state_dict(model, optimizer).get("state", {})  # of rank 0
    moments = {f"{name}.{key}": value for name, of in state.items() for key, value in of.items()}
    return digest_of(luwu.get_model_state_dict(model)), digest_of(moments)


def in_cluster(
    directory: Path, work: Callable[[int], Any], *, world_size: int = 1, device: Any = "cpu",
    **changes: Any,
) -> Trained:  # fmt: skip
    """`work(rank)` of every rank of one job, between luwu.init and luwu.finish; with one thread of
    torch each, as fixtures of a module are made before `one_thread` of its tests. `device`: of all
    ranks, or a list of each one's."""

    def worker(nic: Nic) -> Any:
        luwu.init(nic=nic, device=device[nic.rank] if isinstance(device, list) else device)
        found = work(nic.rank)
        luwu.finish()
        return found

    directory.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "state": None,
        "memory_budget_bytes": 64 * MIB,
        "summary": directory / "summary.json",
    }
    values |= changes
    with alone(), LocalCluster(world_size=world_size, **values) as cluster:
        results = cluster.run(worker)
        store = cluster.node.store
        is_alone = values.get("optimizer_nodes", 1) == 1
        is_decided = is_alone and store is not None and store.decided is not None
        digest = cluster.weights_digest() if is_decided else ""
        return Trained(results, digest, cluster.node.core.counts())


def in_every_way(
    directory: Path, work: Callable[[int], Any], *, chunk_bytes: int = 16 * KIB
) -> Any:
    """What rank 0 of two comes to: the same whatever the chunks, the extents, the memory, the nodes
    and the replicas."""
    ways: list[dict[str, Any]] = [
        {},
        {"chunk_bytes": 64 * KIB},
        {"state": directory / "disk", "memory_budget_bytes": 4 * MIB},
        {"extent_chunks": 4},
        {"optimizer_nodes": 2},
        {"optimizer_nodes": 2, "replicas": 2, "extent_chunks": 2},
    ]
    found = [
        in_cluster(
            directory / str(index), work, world_size=2, **{"chunk_bytes": chunk_bytes} | way
        ).results[0]
        for index, way in enumerate(ways)
    ]
    assert found == found[:1] * len(ways)
    return found[0]


def digest_of(parameters: Mapping[str, Tensor]) -> str:
    """The digest that a node would give of these weights."""
    digest = WeightsDigest()
    for name, value in parameters.items():
        dtype = str(value.dtype).removeprefix("torch.")
        digest.update(name, dtype, tuple(value.shape), value.detach().float().numpy())
    return digest.hexdigest()
