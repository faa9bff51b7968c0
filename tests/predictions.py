"""Random questions of all systems: no step is shorter than its busiest resource needs.

    python -m tests.predictions --count 1000 --seed 0
    python -m tests.predictions --cores 200     # of LuWu: its closed form beside its cores

What a resource needs is counted here, apart from the model's forms: operations at the peak, bytes
of ports, bytes of drives and memories, each over its rate, for a
step or for a token. Networks are up to a thousand times slower than those of the catalogue, so that
each resource limits some of the questions. A part of the steps of LuWu
is played by its cores too. The last line is
`N trials, V violations`; a violation is printed with its question.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer import answer
from luwu.predict.ask.keys import SYSTEMS
from luwu.predict.ask.question import AnyQuestion, InferenceQuestion, Question, make_question
from luwu.predict.driven.driven import CHUNK_BYTES_MIN, play_driven_steps
from luwu.predict.driven.driven_worker import units_of
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.inference.inference_sockets import SocketJob
from luwu.predict.model.job import TrainingJob, utilisation
from luwu.predict.networks.on_topology import connections
from luwu.predict.systems.in_network import PER_HOST

ROUNDING = 1 - 1e-9
PLAYED_SHARE = 0.3
TOPOLOGY_SHARE = 0.2
NICS_SHARE = 0.5
UNITS_MAX = 66
"""Of all micro-batches of a step that is played."""
SOFTWARE = (
    "megatron-2021", "megatron-2022", "megatron-2023", "nemo-2024", "deepspeed-2021",
    "composer-2023", "torchtitan-2024", "deepspeed-2023", "llama-2024",
)  # fmt: skip
DEVICES = ("A100-80", "A100-40", "H100-80", "H200-141", "GB200", "B200-180")
NETWORKS = ("virtio-10g", "roce-100g", "roce-400g", "ib-hdr", "ib-ndr")
MODELS = ("GPT-1.3B", "GPT-13B", "GPT-175B", "Llama3-8B", "Llama3-70B", "Llama3-405B")
OFFLOADS = ("zero-offload", "zero-infinity")
HOST = {
    "processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trial:
    """A question, what it takes, and what each resource needs of that."""

    table: dict[str, Any]
    seconds: float
    needs: dict[str, float]
    played_s: float | None = None

    @property
    def violations(self) -> list[str]:
        """Resources that need longer than the answer, or than the play."""
        found = []
        for what, seconds in (("answer", self.seconds), ("play", self.played_s)):
            found += [
                f"{name} needs {need:.6g} s, the {what} takes {seconds:.6g} s"
                for name, need in self.needs.items()
                if seconds is not None and not seconds >= need * ROUNDING
            ]
        return found


def trials(count: int, seed: int, catalogue: Catalogue) -> Iterator[Trial]:
    """So many questions that can be answered."""
    random = Random(seed)
    for number in range(count):
        trial = None
        while trial is None:
            trial = _trial(tuple(SYSTEMS)[number % len(SYSTEMS)], random, catalogue)
        yield trial


def _trial(system: str, random: Random, catalogue: Catalogue) -> Trial | None:
    """None: impossible, as degrees that do not divide."""
    table, slower = random_table(system, random), 10 ** random.uniform(-3, 0)
    plays = random.random() < PLAYED_SHARE
    try:
        question = _slowed(make_question(table, catalogue), slower)
        answer = question.answer()
        needs = _needs(question)
    except ConfigError:
        return None
    table["network_rate"] = question.job.network.rate
    if isinstance(question, InferenceQuestion):
        return Trial(table, answer.decode.seconds, needs)
    return Trial(table, answer.seconds, needs, _played_s(question) if plays else None)


def _played_s(question: Question) -> float | None:
    """Seconds of a step as LuWu's cores decide it; None where there are none, or too much to do."""
    on = question.as_on_topology()
    if on.nodes is None or (on.job.model.layers + 1) * on.job.micro_batches > UNITS_MAX:
        return None
    return play_driven_steps(on.job, on.nodes, **quick_playing(on.job))


def cores_shares(count: int, seed: int, catalogue: Catalogue) -> list[tuple[float, bool]]:
    """Shares by which steps of LuWu and of its cores differ, and if the answer says so."""
    random, found = Random(seed), list[tuple[float, bool]]()
    while len(found) < count:
        with suppress(ConfigError):
            on = make_question(random_table("luwu", random), catalogue).as_on_topology()
            if (on.job.model.layers + 1) * on.job.micro_batches <= 2 * UNITS_MAX:
                played_s = play_driven_steps(on.job, on.nodes)
                document = answer(on)
                says = "believe the cores" in " ".join(document["warnings"])
                found.append((abs(played_s / document["step_s"] - 1), says))
    return sorted(found)


def quick_playing(job: TrainingJob) -> dict[str, int]:
    """The fewest messages that a step can have: a chunk for each unit, and one worker for all."""
    chunk_bytes = CHUNK_BYTES_MIN
    while chunk_bytes < 4 * max(unit.parameters for unit in units_of(job)):
        chunk_bytes *= 2
    return {"workers": 1, "chunk_bytes": chunk_bytes}


def _slowed(question: Any, slower: float) -> Any:
    """The same on a slower network, at the node and in domains too."""
    network = question.job.network
    network = replace(network, rate=network.rate * slower)
    changed = replace(question, job=replace(question.job, network=network))
    if getattr(question, "nodes", None) is not None:
        device = question.job.device
        if device.domain_rate is not None:
            device = replace(device, domain_rate=device.domain_rate * slower)
        changed = replace(changed, job=replace(changed.job, device=device))
        own = replace(question.nodes.network, rate=network.rate)
        changed = replace(changed, part=replace(question.nodes, network=own))
    return changed


# ---------------------------------------------------------------------- questions


def random_table(system: str, random: Random) -> dict[str, Any]:
    """The table of a question, which may be impossible: degrees are drawn one by one."""
    if system == "inference":
        return _inference(random)
    if system == "inference-sockets":
        return _sockets(random)
    table: dict[str, Any] = {
        "system": system, "model": random.choice(MODELS), "device": random.choice(DEVICES),
        "network": random.choice(NETWORKS), "software": random.choice(SOFTWARE),
        "devices": 2 ** random.randint(0, 10), "sequence": 2 ** random.randint(9, 15),
        "micro_batch": 2 ** random.randint(0, 3),
        "recompute": random.choice(("none", "selective", "half", "full")),
    }  # fmt: skip
    data = table["devices"]
    if system == "3d":
        for key, most in (("tensor", 4), ("pipeline", 4), ("context", 2)):
            table[key] = 2 ** random.randint(0, most)
            data = max(1, data // table[key])
        table["virtual"] = random.choice((1, 1, 2, 3, 5, 12))
        table["sequence_parallel"] = random.random() < 0.5
    table["batch"] = data * table["micro_batch"] * 2 ** random.randint(0, 6)
    if random.random() < TOPOLOGY_SHARE:
        table["topology"] = {"kind": "clos", "radix": 64, "taper": random.choice((1, 2, 4)),
                             "aggregates": True}  # fmt: skip
    elif random.random() < NICS_SHARE:
        table["nics_per_host"] = random.choice((1, 2, 4, 8))
    if system == "luwu":
        table["node"] = HOST | {
            "disks": random.randint(1, 12), "nodes": random.randint(1, 4),
            "cached": random.choice((0.0, 0.5, 1.0)), "pulls": random.randint(1, 2),
            "per_host": "none" if "topology" in table else random.choice(PER_HOST),
        }  # fmt: skip
    if system in OFFLOADS:
        table["host"] = HOST | {
            "devices": random.choice((1, 4, 8)), "disks": random.randint(1, 8),
        }  # fmt: skip
    return table


def _inference(random: Random) -> dict[str, Any]:
    return {
        "system": "inference", "model": random.choice(MODELS), "device": random.choice(DEVICES),
        "network": random.choice(NETWORKS), "tensor": 2 ** random.randint(0, 5),
        "pipeline": 2 ** random.randint(0, 4), "precision": random.choice(("bf16", "fp8")),
        "nics_per_host": random.choice((1, 2, 4, 8)),
        "batch": 2 ** random.randint(0, 8), "batching": random.choice(("static", "continuous")),
        "input_tokens": 2 ** random.randint(4, 14), "output_tokens": 2 ** random.randint(2, 12),
    }  # fmt: skip


def _sockets(random: Random) -> dict[str, Any]:
    return {
        "system": "inference-sockets", "model": random.choice(MODELS), "processor": "Xeon-8563C",
        "network": random.choice(NETWORKS), "sockets": 2 ** random.randint(0, 3),
        "host_sockets": random.choice((1, 2)), "batch": 2 ** random.randint(0, 4),
        "input_tokens": 128, "output_tokens": 2 ** random.randint(2, 12),
    }  # fmt: skip


# ---------------------------------------------------------------------- what each resource needs


def _needs(question: AnyQuestion) -> dict[str, float]:
    """Seconds of each resource, for a step or for a token."""
    if isinstance(question, InferenceQuestion):
        return _inference_needs(question)
    job = question.job
    operations = utilisation(job, 1.0)["mfu"]
    by_port = {name: each.port_bytes for name, each in question.exchanges().items()}
    directions = by_port if question.system == "luwu" else {"port": sum(by_port.values())}
    found = {name: nbytes / job.network.port_rate for name, nbytes in directions.items()}
    built = question.build()
    if built is not None:
        found |= {
            f"links of {name}": by_port[name] / min(each.rate, job.network.port_rate)
            for name, each in connections(built, question.exchanges()).items()
        }
    found["compute"] = operations
    found |= _nic_needs(question)
    found |= _state_needs(question)
    return found


def _nic_needs(question: Any) -> dict[str, float]:
    """Of the NICs of a full host: what its devices pull and push, each or once for all of them; or
    one way around of what is gathered and reduced, through all NICs or through one."""
    job, m, psi = question.job, question.job.micro_batches, float(question.job.model.parameters)
    in_host = job.software.host_devices or int(job.device.domain_count)
    rate = job.network.rate * job.network.efficiency
    nics = rate * (question.nics_per_host or in_host)
    if question.nodes is not None:
        once, devices = question.nodes.per_host, min(in_host, job.devices)
        down = m * question.nodes.pulls * 2 * psi * (devices if once == "none" else 1)
        up = m * job.software.gradient_bytes * psi * (1 if once == "pull-and-push" else devices)
        found = {"NICs down": down / nics, "NICs up": up / nics}
        if once != "none":
            passed_on = m * 2 * psi * question.nodes.pulls
            passed_on += up if once == "pull-and-push" else 0.0
            link = job.device.domain_rate or job.device.host_rate
            found["domain link"] = passed_on * (1 - 1 / (job.devices % in_host or in_host)) / link
        return found
    if question.system not in ("zero3", *OFFLOADS) or job.devices <= in_host:
        return {}
    around = m * (4 + job.software.gradient_bytes) * psi * (job.devices - 1) / job.devices
    return {"NICs": around / (rate if job.software.ring == "flat" else nics)}


def _state_needs(question: Any) -> dict[str, float]:
    """Of the host that has the state: 12 bytes of a parameter read and written."""
    psi, part = float(question.job.model.parameters), question.part
    if question.nodes is not None:
        away, host = 12 * psi * (1 - part.cached) / part.nodes, part.host
        wire = 2 * psi * question.job.micro_batches * part.pulls / part.nodes
        return {
            "disk read": away / (host.disks * host.disk.read_rate),
            "disk write": away / (host.disks * host.disk.write_rate),
            "node memory": 28 * psi / part.nodes / (host.processors * host.processor.memory_rate),
            "node port": wire / part.network.port_rate,
        }
    if part is None:
        return {}
    share, host = psi * part.devices / question.job.devices, part.host
    found = {
        "PCIe": 2 * share / part.devices / question.job.device.host_rate,
        "host memory": 28 * share / (host.processors * host.processor.memory_rate),
    }
    if part.to_disk:
        found["disk read"] = 12 * share / (host.disks * host.disk.read_rate)
        found["disk write"] = 12 * share / (host.disks * host.disk.write_rate)
    return found


def _inference_needs(question: InferenceQuestion) -> dict[str, float]:
    """Of a token of each sequence: weights once, all of the cache, operations, sends."""
    job = question.job
    parameters = job.model.layers * job.model.layer_parameters
    layer = 2 * job.batch * job.model.hidden
    if isinstance(job, SocketJob):
        sent = 2 * job.model.layers * 2 * (job.hosts - 1) / job.hosts * layer
        return {
            "memory": 2 * parameters / job.sockets / job.processor.memory_rate,
            "port": sent / job.network.port_rate,
        }
    if job.batching == "continuous":
        layer *= 1 + job.input_tokens / job.output_tokens
    sent = 0.0
    if job.tensor > job.device.domain_count:
        sent += 2 * job.stage_layers * 2 * (job.tensor - 1) / job.tensor * layer
    if job.pipeline > 1 and job.devices > job.device.domain_count:
        sent += layer
    peak, batch = getattr(job.device, job.precision), question.answer().batch
    weights = {"bf16": 2.0, "fp8": 1.0}[job.precision] * parameters
    return {
        "memory": weights / job.tensor / job.device.memory_rate,
        "compute": 2 * batch * parameters / job.devices / peak,
        "port": batch / job.batch * sent / job.network.port_rate,
    }


# ---------------------------------------------------------------------- the program


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask and count; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.predictions", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=1000, help="questions (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of their choice (0)")
    parser.add_argument("--cores", type=int, help="jobs of LuWu, and nothing else")
    asked = parser.parse_args(arguments)
    if asked.cores:
        shares = cores_shares(asked.cores, asked.seed, load())
        within = ", ".join(f"{shares[int(part * len(shares))][0]:.1%}" for part in (0.5, 0.8, 0.9))
        silent = [share for share, says in shares if share > 0.1 and not says]
        print(f"half, 80 % and 90 % differ by at most {within}; all by {shares[-1][0]:.1%}")
        print(f"{len(shares)} trials, {len(silent)} violations")
        return 1 if silent else 0
    violations, limits = 0, Counter[str]()
    for trial in trials(asked.count, asked.seed, load()):
        limits[max(trial.needs, key=lambda name: trial.needs[name])] += 1
        for violation in trial.violations:
            violations += 1
            print(f"{violation}: {json.dumps(trial.table)}")
    print("needed longest:", ", ".join(f"{name} {n}" for name, n in limits.most_common()))
    print(f"{asked.count} trials, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
