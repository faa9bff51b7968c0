"""The configuration of a run: one table of keys, read from four places in one order.

    defaults  <  TOML file (`--config FILE` or LUWU_CONFIG)  <  LUWU_<KEY>  <  flags

A key has one name everywhere: `memory_budget` in the file, LUWU_MEMORY_BUDGET in the environment,
`--memory-budget` on the command line. Its value is a text with the same units in all of them, read
by the same parser. Unknown keys are errors; the message suggests the nearest. An unset key is not
the same as one set to its default: `Resolved.origins` has the origin of each value.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.dtypes import COMPUTE_DTYPES, MASTER_DTYPES, STATE_DTYPES
from luwu.base.errors import ConfigError, suggestion
from luwu.base.foreign import read_toml
from luwu.base.limits import INT64_MAX, NODE_COUNT_MAX, WORLD_SIZE_MAX
from luwu.base.links import Links, parse_dilation, parse_links, parse_rate
from luwu.base.parsers import (
    Parser,
    boolean,
    chunk_size,
    number,
    one_of,
    path,
    rank_ranges,
    seconds,
    size_or_auto,
    whole,
    words,
)
from luwu.base.quantities import exact_size

ENVIRONMENT_PREFIX: Final = "LUWU_"
ENVIRONMENT_ONLY: Final = (
    "LUWU_CONFIG", "LUWU_CONNECT", "LUWU_EVENTS", "LUWU_FAILPOINTS", "LUWU_INCARNATION",
    "LUWU_JOB_FILE", "LUWU_PRELOAD", "LUWU_RUN_ID",
)  # fmt: skip
"""Variables that are no keys; a user sets LUWU_CONFIG, LUWU_FAILPOINTS and LUWU_PRELOAD."""

ARM_NAMES: Final = ("luwu", "luwu_ram", "fsdp", "fsdp_offload", "ddp", "single")
LOSS_POLICIES: Final = ("stop", "wait", "drop")
"""Values of `on_worker_loss`."""

ALL: Final = ("compare", "run", "up")
COMPARE: Final = ("compare",)
JOINING: Final = ("run", "up")
PLANNED: Final = (*JOINING, "estimate")
RUN: Final = ("run",)
UP: Final = ("up",)

NODE: Final = ("node",)
SWITCH: Final = ("switch",)
BOTH: Final = ("node", "switch")

TRAINING: Final = "Training"
RECORDS: Final = "State and records"
MEMORY: Final = "Memory"
NETWORK: Final = "Network"
HOSTS: Final = "Several hosts"
LOSSES: Final = "Lost processes"
EMULATION: Final = "Emulated links, disks and switches"


def arm_names(text: str, name: str) -> tuple[str, ...]:
    """Different arms, separated by commas."""
    parse = one_of(*ARM_NAMES)
    arms = tuple(parse(part.strip(), name) for part in text.split(","))
    if len(set(arms)) != len(arms):
        raise ConfigError(f"{name}: {text!r} names an arm twice; name each once")
    return arms


def _key(
    default: object, parse: Parser, shape: str, verbs: tuple[str, ...], group: str, text: str,
    roles: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """All that describes a key: commands, help, file, environment and documents have it from here.

    `roles`: those of switch and node that heed it; such a key belongs to the command that starts
    them.
    """
    metadata = {
        "parse": parse, "shape": shape, "verbs": verbs, "group": group, "text": text,
        "roles": roles,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def _choice(default: str, choices: tuple[str, ...], *described: Any, **more: Any) -> Any:
    """A key whose value is one of some words; what follows is as for `_key`."""
    return _key(default, one_of(*choices), "|".join(choices), *described, **more)


# ---------------------------------------------------------------------- the keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Every key of `luwu compare`, `run` and `up`; None where the program decides."""

    # fmt: off
    workers: int = _key(2, whole(1, WORLD_SIZE_MAX), "N", ALL, TRAINING,
        "number of workers, each a training process")
    arms: tuple[str, ...] = _key(("luwu", "fsdp"), arm_names, "A,B", COMPARE, TRAINING,
        "ways to train, one after the other: " + ", ".join(ARM_NAMES))
    steps: int | None = _key(None, whole(1), "N", COMPARE, TRAINING,
        "optimizer steps (default: that of workers/train.py)")
    data: Path | None = _key(None, path, "FILE", COMPARE, TRAINING,
        "training data: text, or .bin of uint16 tokens (default: the source of Python's library)")
    layers: int | None = _key(None, whole(1), "N", COMPARE, TRAINING, "blocks of the built-in GPT")
    width: int | None = _key(None, whole(1), "N", COMPARE, TRAINING,
        "width of the GPT's residual stream")
    context: int | None = _key(None, whole(1), "N", COMPARE, TRAINING, "tokens per sample")
    batch: int | None = _key(None, whole(1), "N", COMPARE, TRAINING, "samples per worker and step")
    dtype: str = _choice("float32", COMPUTE_DTYPES, COMPARE, TRAINING,
        "data type of compute, and of weights and gradients on the network")
    state_dtype: str = _choice("float32", STATE_DTYPES, COMPARE, TRAINING,
        "data type in which arms luwu keep Adam's moments")
    master_dtype: str = _choice("float32", MASTER_DTYPES, COMPARE, TRAINING,
        "data type in which arms luwu keep master weights")
    max_grad_norm: float | None = _key(None, number(above_zero=True), "X", COMPARE, TRAINING,
        "clip gradients to this norm")
    seed: int = _key(0, whole(0), "N", ALL, TRAINING,
        "seed of all random numbers; run and up: of emulated links only", roles=BOTH)
    reshard_after_forward: bool | None = _key(None, boolean, "true|false", ALL, TRAINING,
        "free a unit's weights between forward and backward (default: as FSDP2 does)", roles=NODE)
    state: Path | None = _key(None, path, "DIR", ALL, RECORDS,
        "directory of the training state (default: luwu-state; compare: the run directory)",
        roles=NODE)
    resume: bool = _key(False, boolean, "true|false", PLANNED, RECORDS,
        "continue from the last step in --state", roles=NODE)
    durability: str = _choice("step", ("step", "process", "none"), ALL, RECORDS,
        "failures that a decided step survives: power loss, the end of any process, or none",
        roles=NODE)
    log_steps: int = _key(8, whole(1, 64), "N", ALL, RECORDS,
        "write each page of a state that fits in RAM once in so many steps, and in the others only "
        "the sum of its gradients; 1: all pages in every step",
        roles=NODE)
    run_dir: Path | None = _key(None, path, "DIR", ALL, RECORDS,
        "directory of this run (default: luwu-runs/<time>-<id>)")
    json: str | None = _key(None, words, "FILE|-", COMPARE, RECORDS,
        "also write the results as JSON; - prints them")
    memory_budget: int | None = _key(None, size_or_auto, "SIZE|auto", ALL, MEMORY,
        "total memory that the optimizer nodes may allocate; auto: half of the free memory",
        roles=NODE)
    switch_memory_budget: int | None = _key(None, size_or_auto, "SIZE|auto", ALL, MEMORY,
        "memory of each switch for gradients; the rest caches weights; auto: 512MiB", roles=SWITCH)
    chunk: int | None = _key(None, chunk_size, "SIZE|auto", ALL, MEMORY,
        "float32 gradient bytes per stored page; auto: from memory budget and links", roles=NODE)
    extent: int | None = _key(None, chunk_size, "SIZE|auto", ALL, MEMORY,
        "bytes of neighbouring chunks per message; auto: as the budget allows, up to 1MiB",
        roles=NODE)
    optimizer_nodes: int = _key(1, whole(1, NODE_COUNT_MAX), "N", ALL, MEMORY,
        "number of optimizer nodes that share the pages; each has its own directory in --state",
        roles=NODE)
    replicas: int = _key(1, whole(1, NODE_COUNT_MAX), "R", ALL, MEMORY,
        "number of optimizer nodes that hold each page; they check each other at every step",
        roles=NODE)
    transport: str = _choice("auto", ("auto", "tcp", "ipc", "shm"), ALL, NETWORK,
        "how processes communicate; auto: shared memory on one host", roles=BOTH)
    aggregate: str = _key("float32", words, "float32|shared-exponent|NAME", ALL, NETWORK,
        "how the network adds gradients; NAME: an aggregator of another package", roles=NODE)
    no_switch: bool = _key(False, boolean, "true|false", ALL, NETWORK,
        "connect workers directly to the node; one host only", roles=BOTH)
    tree: Path | None = _key(None, path, "FILE", ALL, NETWORK,
        "TOML file of switches, parents and workers: docs/trees.md", roles=BOTH)
    join: str | None = _key(None, words, "FILE|URL", JOINING, HOSTS,
        "connection file or URL of a job that already runs")
    ranks: str | None = _key(None, rank_ranges, "0-3,6", RUN, HOSTS,
        "ranks of the workers on this host; run the command on each host, with --join and its own "
        "ranks")
    engine: str = _choice("local", ("local", "ray"), RUN, HOSTS,
        "what starts and watches the processes: this command, or Ray (needs luwu-emulator[ray])")
    hosts: int = _key(1, whole(1, WORLD_SIZE_MAX), "N", PLANNED, HOSTS,
        "number of hosts that share the workers evenly, each with a switch of its own; run: only "
        "with Ray",
        roles=BOTH)
    bind: str | None = _key(None, words, "ENDPOINT", UP, HOSTS,
        "address to listen on, such as tcp://127.0.0.1:0")
    advertise: str | None = _key(None, words, "HOST[:PORT]", UP, HOSTS,
        "address that others connect to, if not that of --bind; of several, the one that answers")
    job: int | None = _key(None, whole(1, INT64_MAX), "N", UP, HOSTS,
        "number of the job in the URL (default: random); set it if an engine restarts the roles",
        roles=NODE)
    keys: Path | None = _key(None, path, "DIR", ("run", "up", "keys"), HOSTS,
        "directory of keys: encrypt tcp connections, and accept only these keys")
    key_name: str | None = _key(None, words, "NAME", JOINING, HOSTS,
        "name of the key to use (default: node, switch or worker-{rank}); may contain {local_rank}")
    insecure: bool = _key(False, boolean, "true|false", JOINING, HOSTS,
        "allow addresses off loopback without keys, on a trusted network; run: only with Ray")
    restarts: int = _key(3, whole(0), "N", ALL, LOSSES,
        "maximum number of restarts of a crashed switch or node", roles=BOTH)
    worker_restarts: int | None = _key(None, whole(0), "N", ("run", "estimate"), LOSSES,
        "maximum number of restarts after a worker is lost, each of which replays the step; with "
        "on_worker_loss stop, of all workers on its host (default: 0), else of the lost one (wait: "
        "3, drop: 0)")
    on_worker_loss: str = _choice("stop", LOSS_POLICIES, PLANNED, LOSSES,
        "when a worker is lost: end the run, restart it while the others wait, or drop it",
        roles=BOTH)
    drop_after: float = _key(10.0, seconds, "TIME", PLANNED, LOSSES,
        "drop a worker that has been missing, or late, for this long", roles=BOTH)
    workers_min: int = _key(1, whole(1, WORLD_SIZE_MAX), "N", PLANNED, LOSSES,
        "minimum number of workers; with fewer, the job waits until dropped workers return",
        roles=BOTH)
    workers_max: int | None = _key(None, whole(1, WORLD_SIZE_MAX), "N", UP, LOSSES,
        "number of workers that may join, in place of workers: the job begins with those that are "
        "there drop_after after the first, at least workers_min; for on_worker_loss drop")
    drop_node_after: float = _key(10.0, seconds, "TIME", ALL, LOSSES,
        "with replicas: continue without an optimizer node that has been missing for this long",
        roles=SWITCH)
    fill_rate: float = _key(64e6, parse_rate, "RATE", ALL, LOSSES,
        "with replicas: rate at which the pages of a lost optimizer node are copied to its "
        "successor while training continues: 1GB/s", roles=SWITCH)
    connect_timeout: float = _key(60.0, seconds, "TIME", ALL, LOSSES,
        "how long to wait for a process or a connection file")
    grace: float = _key(600.0, seconds, "TIME", ALL, LOSSES,
        "how long to wait for a process that stopped responding", roles=NODE)
    link: Links | None = _key(None, parse_links, "SPEC", ALL, EMULATION,
        "emulate links: 10gbit, 100gbe, rate=1gbit,delay=0.2ms,loss=0.01 or worker=SPEC;node=SPEC",
        roles=BOTH)
    disk_rate: float | None = _key(None, parse_rate, "RATE", ALL, EMULATION,
        "emulate a disk of this rate for the node's pages: 2GB/s", roles=NODE)
    compute_ms: float | None = _key(None, number(above_zero=False), "X", COMPARE, EMULATION,
        "minimum time of each unit's forward, and of its backward, in milliseconds")
    dilation: float = _key(1.0, parse_dilation, "X", ALL, EMULATION,
        "slow down emulated links, the emulated disk and --compute-ms by this factor", roles=BOTH)
    fidelity: str = _choice("functional", ("functional", "protocol"), ALL, EMULATION,
        "model of the switch: memory as needed, or the fixed slots of a programmable switch",
        roles=SWITCH)
    slots: int | None = _key(None, whole(1), "N", ALL, EMULATION,
        "slots of the switch with --fidelity protocol, two copies each (default: at most 256)",
        roles=SWITCH)
    # fmt: on


@dataclass(frozen=True, slots=True)
class Key:
    """A row of the table."""

    name: str
    default: Any
    parse: Parser
    shape: str
    verbs: tuple[str, ...]
    """The commands that take it."""
    group: str
    """The heading under which help lists it."""
    text: str
    roles: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_boolean(self) -> bool:
        """True if `--x` alone and `--no-x` mean something."""
        return self.parse is boolean


KEYS: Final[Mapping[str, Key]] = {
    each.name: Key(name=each.name, default=each.default, **each.metadata)
    for each in dataclasses.fields(RunConfig)
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, and who set each key."""

    config: RunConfig
    origins: Mapping[str, str]
    given: Mapping[str, str]
    """The texts of the command line, `config` among them: enough to type it again."""

    def is_default(self, name: str) -> bool:
        """True if no flag, file or variable set it."""
        return self.origins[name] == "default"

    def document(self) -> dict[str, Any]:
        """For `resolved.json`: each key's value as a text one could give, and its origin."""
        return {
            "schema": 1,
            "keys": {
                name: {"value": value_text(name, value), "origin": self.origins[name]}
                for name, value in as_mapping(self.config).items()
            },
        }


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """The values by key, in the order of the table."""
    return {name: getattr(config, name) for name in KEYS}


def value_text(name: str, value: object) -> str | None:
    """A value as one would write it; None for what the program decides."""
    if value is None:
        return "auto" if KEYS[name].shape.endswith("|auto") else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if KEYS[name].parse in (size_or_auto, chunk_size) and isinstance(value, int):
        return exact_size(value)
    if KEYS[name].parse is parse_rate and isinstance(value, float):
        if not value % 1e6:
            return f"{int(value // 1e6)}MB/s"
        return f"{round(value * 8)}bit"
    if KEYS[name].parse is seconds:
        return f"{value:g}s"
    return str(value)


# ---------------------------------------------------------------------- where values come from


def resolve(
    *, flags: Mapping[str, str], environ: Mapping[str, str] | None = None, file: Path | None = None
) -> Resolved:
    """Read all places, in order. Raises ConfigError.

    `flags` maps keys to texts; `file` is that of `--config`.
    """
    environ = os.environ if environ is None else environ
    given = dict(flags) if file is None else {**flags, "config": str(file)}
    if file is None and environ.get("LUWU_CONFIG"):
        file = Path(environ["LUWU_CONFIG"]).expanduser()
    texts: dict[str, tuple[str, str, str]] = {}  # key -> (text, name for messages, origin)
    for name, text in (_read_file(file) if file is not None else {}).items():
        texts[name] = (text, f"{file}: {name}", f"file {file}")
    for name, text in _read_environment(environ).items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        texts[name] = (text, variable, f"environment {variable}")
    for name, text in flags.items():
        texts[name] = (text, KEYS[name].flag, f"flag {KEYS[name].flag}")
    values = {name: KEYS[name].parse(text, where) for name, (text, where, _) in texts.items()}
    origins = {name: texts[name][2] if name in texts else "default" for name in KEYS}
    if "workers_max" in values:
        if "workers" in values:
            raise ConfigError("workers and workers_max: one number of ranks; leave one of them out")
        values["workers"], origins["workers"] = values["workers_max"], origins["workers_max"]
    return Resolved(RunConfig(**values), origins, given)


def _read_file(file: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for written, value in read_toml(file, "configuration").items():
        name = written.replace("-", "_")
        if name not in KEYS:
            raise ConfigError(
                f"{file}: unknown key {written!r}{suggestion(name, KEYS)}", code="E201"
            )
        if name in texts:
            raise ConfigError(f"{file}: {name} is listed twice, with - and with _; omit one")
        texts[name] = _text_of(value, f"{file}: {written}")
    return texts


def _text_of(value: object, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(f"{where}: {value!r:.60} is not a valid value; write a text, number or list")


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for variable, text in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in ENVIRONMENT_ONLY:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in KEYS:
            known = [ENVIRONMENT_PREFIX + key.upper() for key in KEYS] + [*ENVIRONMENT_ONLY]
            raise ConfigError(
                f"the environment has {variable}, which no key is called; unset it, or fix its name"
                f"{suggestion(variable, known)}",
                code="E201",
            )
        texts[name] = text
    return texts
