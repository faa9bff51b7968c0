"""The configuration of a run: one table of keys, read from four places in one order.

    defaults  <  preset  <  TOML file (`--config FILE` or LUWU_CONFIG)  <  LUWU_<KEY>  <  flags

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

from luwu.base.errors import ConfigError
from luwu.base.foreign import read_toml
from luwu.base.limits import (
    INT64_MAX,
    NODE_COUNT_MAX,
    WORLD_SIZE_MAX,
)
from luwu.base.links import (
    Links,
    parse_dilation,
    parse_links,
    parse_rate,
    parse_ratio,
    parse_window,
)
from luwu.base.parsers import (
    Parser,
    boolean,
    chunk_size,
    host_and_port,
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
from luwu.base.suggestion import suggestion

ENVIRONMENT_PREFIX: Final = "LUWU_"
ENVIRONMENT_ONLY: Final = {
    "LUWU_CONFIG": "TOML file of keys, unless --config is given",
    "LUWU_CONNECT": "connection file or URL; the launcher sets it for workers",
    "LUWU_EVENTS": "directory for a worker's events; the launcher sets it",
    "LUWU_FAILPOINTS": "points at which a test makes a process fail",
    "LUWU_INCARNATION": "number of this start of a worker; the launcher sets it",
    "LUWU_RUN_ID": "id of the run, in all its processes; the launcher sets it",
}
"""Variables that are no keys."""

ARM_NAMES: Final = ("luwu", "luwu_ram", "fsdp", "fsdp_offload", "ddp", "single")
SERVING_KEYS: Final = (
    "aggregate", "chunk", "dilation", "disk_rate", "drop_after",
    "drop_node_after", "duplicate", "durability", "extent", "fidelity", "fill_rate", "link", "loss",
    "memory_budget", "no_switch", "on_lost_steps", "on_worker_loss", "optimizer_nodes", "reorder",
    "replicas", "reshard_after_forward", "restarts", "resume", "seed", "slots", "state",
    "switch_memory_budget", "transport", "tree", "workers_min",
)  # fmt: skip
"""Keys of switch and node: they belong to whoever starts these."""
LOSS_POLICIES: Final = ("stop", "wait", "drop")
"""Values of `on_worker_loss`."""
EVERYWHERE: Final = ("compare", "run", "up")
SERVING: Final = ("compare", "run", "up")
TRAINING: Final = ("compare", "run")
COMPARING: Final = ("compare",)


def arm_names(text: str, name: str) -> tuple[str, ...]:
    """Different arms, separated by commas."""
    parse = one_of(*ARM_NAMES)
    arms = tuple(parse(part.strip(), name) for part in text.split(","))
    if len(set(arms)) != len(arms):
        raise ConfigError(f"{name}: {text!r} names an arm twice; name each once")
    return arms


def _key(default: object, parse: Parser, shape: str, verbs: tuple[str, ...], text: str) -> Any:
    metadata = {"parse": parse, "shape": shape, "verbs": verbs, "text": text}
    return dataclasses.field(default=default, metadata=metadata)


# ---------------------------------------------------------------------- the keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Every key of `luwu compare`, `run` and `up`; None where the program decides."""

    workers: int = _key(
        2, whole(1, WORLD_SIZE_MAX), "N", EVERYWHERE, "number of workers, each a training process"
    )
    steps: int | None = _key(
        None, whole(1), "N", COMPARING, "optimizer steps (default: that of workers/train.py)"
    )
    arms: tuple[str, ...] = _key(
        ("luwu", "fsdp"), arm_names, "A,B", COMPARING,
        "ways to train, one after the other: " + ", ".join(ARM_NAMES),
    )  # fmt: skip
    json: str | None = _key(
        None, words, "FILE|-", COMPARING, "also write the results as JSON; - prints them"
    )
    data: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", COMPARING,
        "training data: text, or .bin of uint16 tokens (default: the source of Python's library)",
    )  # fmt: skip
    seed: int = _key(
        0, whole(0), "N", EVERYWHERE,
        "seed of all random numbers; run and up: of emulated links only",
    )  # fmt: skip
    dtype: str = _key(
        "float32", one_of("float32", "bfloat16"), "float32|bfloat16", COMPARING,
        "data type of compute, and of weights and gradients on the network",
    )  # fmt: skip
    state_dtype: str = _key(
        "float32", one_of("float32", "bfloat16", "int8"), "float32|bfloat16|int8", COMPARING,
        "data type in which arms luwu keep Adam's moments",
    )  # fmt: skip
    master_dtype: str = _key(
        "float32", one_of("float32", "bfloat16"), "float32|bfloat16", COMPARING,
        "data type in which arms luwu keep master weights",
    )  # fmt: skip
    layers: int | None = _key(None, whole(1), "N", COMPARING, "blocks of the built-in GPT")
    width: int | None = _key(None, whole(1), "N", COMPARING, "width of the GPT's residual stream")
    batch: int | None = _key(None, whole(1), "N", COMPARING, "samples per worker and step")
    context: int | None = _key(None, whole(1), "N", COMPARING, "tokens per sample")
    max_grad_norm: float | None = _key(
        None, number(above_zero=True), "X", COMPARING, "clip gradients to this norm"
    )
    compute_ms: float | None = _key(
        None, number(above_zero=False), "X", COMPARING,
        "minimum time of each unit's forward, and of its backward, in milliseconds",
    )  # fmt: skip
    reshard_after_forward: bool | None = _key(
        None, boolean, "true|false", EVERYWHERE,
        "free a unit's weights between forward and backward (default: as FSDP2 does)",
    )  # fmt: skip
    transport: str = _key(
        "auto", one_of("auto", "tcp", "ipc", "shm"), "auto|tcp|ipc|shm", SERVING,
        "how processes communicate; auto: shared memory on one host",
    )  # fmt: skip
    aggregate: str = _key(
        "float32", words, "float32|shared-exponent|NAME", SERVING,
        "how the network adds gradients; NAME: an aggregator of another package",
    )  # fmt: skip
    chunk: int | None = _key(
        None, chunk_size, "SIZE|auto", SERVING,
        "float32 gradient bytes per stored page; auto: from memory budget and links",
    )  # fmt: skip
    extent: int | None = _key(
        None, chunk_size, "SIZE|auto", SERVING,
        "bytes of neighbouring chunks per message; auto: as the budget allows, up to 1MiB",
    )  # fmt: skip
    memory_budget: int | None = _key(
        None, size_or_auto, "SIZE|auto", SERVING,
        "total memory that the optimizer nodes may allocate; auto: half of the free memory",
    )  # fmt: skip
    switch_memory_budget: int | None = _key(
        None, size_or_auto, "SIZE|auto", SERVING,
        "memory of each switch for gradients; the rest caches weights; auto: 512MiB",
    )  # fmt: skip
    durability: str = _key(
        "step", one_of("step", "process", "none"), "step|process|none", SERVING,
        "failures that a decided step survives: power loss, the end of any process, or none",
    )  # fmt: skip
    no_switch: bool = _key(
        False, boolean, "true|false", SERVING, "connect workers directly to the node; one host only"
    )
    link: Links | None = _key(  # noqa: RUF009 - it makes a field
        None, parse_links, "SPEC", SERVING,
        "emulate links: 10gbit, 100gbe, rate=1gbit,delay=0.2ms,queue=4MiB or worker=SPEC;node=SPEC",
    )  # fmt: skip
    loss: float | None = _key(
        None, parse_ratio, "X", SERVING, "share of messages that each emulated link drops"
    )
    duplicate: float | None = _key(
        None, parse_ratio, "X", SERVING, "share of messages that each emulated link delivers twice"
    )
    reorder: int | None = _key(
        None, parse_window, "N", SERVING,
        "number of later messages that may overtake one on an emulated link",
    )  # fmt: skip
    disk_rate: float | None = _key(
        None, parse_rate, "RATE", SERVING, "emulate a disk of this rate for the node's pages: 2GB/s"
    )
    dilation: float = _key(
        1.0, parse_dilation, "X", SERVING,
        "slow down emulated links, the emulated disk and --compute-ms by this factor",
    )  # fmt: skip
    fidelity: str = _key(
        "functional", one_of("functional", "protocol", "timed"), "functional|protocol|timed",
        SERVING, "model of the switch: memory as needed; the fixed slots of a programmable switch; "
        "these slots with timed links",
    )  # fmt: skip
    slots: int | None = _key(
        None, whole(1), "N", SERVING,
        "slots of the switch with --fidelity protocol, two copies each (default: at most 256)",
    )  # fmt: skip
    tree: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", SERVING, "TOML file of switches, parents and workers: docs/trees.md"
    )
    optimizer_nodes: int = _key(
        1, whole(1, NODE_COUNT_MAX), "N", SERVING,
        "number of optimizer nodes that share the pages; each has its own directory in --state",
    )  # fmt: skip
    replicas: int = _key(
        1, whole(1, NODE_COUNT_MAX), "R", SERVING,
        "number of optimizer nodes that hold each page; they check each other at every step",
    )  # fmt: skip
    state: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", SERVING,
        "directory of the training state (default: luwu-state; compare: the run directory)",
    )  # fmt: skip
    resume: bool = _key(
        False, boolean, "true|false", SERVING, "continue from the last step in --state"
    )
    restarts: int = _key(
        3, whole(0), "N", SERVING, "maximum number of restarts of a crashed switch or node"
    )
    on_lost_steps: str = _key(
        "stop", one_of("stop", "redo"), "stop|redo", SERVING,
        "when a node has lost decided steps: end the run, or recompute them",
    )  # fmt: skip
    on_worker_loss: str = _key(
        "stop",
        one_of(*LOSS_POLICIES),
        "stop|wait|drop",
        SERVING,
        "when a worker is lost: end the run, restart it while the others wait, or drop it",
    )
    drop_after: float = _key(
        10.0,
        seconds,
        "TIME",
        SERVING,
        "drop a worker that has been missing, or late, for this long",
    )
    workers_min: int = _key(
        1,
        whole(1, WORLD_SIZE_MAX),
        "N",
        SERVING,
        "minimum number of workers; with fewer, the job waits until dropped workers return",
    )
    workers_max: int | None = _key(
        None, whole(1, WORLD_SIZE_MAX), "N", ("up",),
        "number of workers that may join, in place of workers: the job begins with those that are "
        "there drop_after after the first, at least workers_min; for on_worker_loss drop",
    )  # fmt: skip
    drop_node_after: float = _key(
        10.0, seconds, "TIME", SERVING,
        "with replicas: continue without an optimizer node that has been missing for this long",
    )  # fmt: skip
    fill_rate: float = _key(
        64e6, parse_rate, "RATE", SERVING,
        "with replicas: rate at which the pages of a lost optimizer node are copied to its "
        "successor while training continues: 1GB/s",
    )  # fmt: skip
    run_dir: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", EVERYWHERE, "directory of this run (default: luwu-runs/<time>-<id>)"
    )
    tensorboard: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", ("run",),
        "write the values that the script passes to luwu.log there, as TensorBoard event files",
    )  # fmt: skip
    trace: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", TRAINING, "write a timeline of the run, for ui.perfetto.dev"
    )
    worker_restarts: int | None = _key(
        None, whole(0), "N", TRAINING,
        "maximum number of restarts after a worker is lost, each of which replays the step; with "
        "on_worker_loss stop, of all workers (default: 0), else of the lost one (wait: 3, drop: 0)",
    )  # fmt: skip
    worker_hosts: int = _key(
        1, whole(1, WORLD_SIZE_MAX), "N", ("run",),
        "number of hosts that share the workers; run the same command on each, with --join "
        "and --rendezvous",
    )  # fmt: skip
    ranks: str | None = _key(
        None, rank_ranges, "0-3,6", ("run",),
        "ranks of the workers on this host; run the command on each host, with --join and its own "
        "ranks (for on_worker_loss wait and drop)",
    )  # fmt: skip
    rendezvous: str | None = _key(
        None, host_and_port, "HOST:PORT", ("run",),
        "where the torchruns of all hosts meet: the address of one host, and a free port",
    )  # fmt: skip
    job: int | None = _key(
        None, whole(1, INT64_MAX), "N", ("up",),
        "number of the job in the URL (default: random); set it if an engine restarts the roles",
    )  # fmt: skip
    join: str | None = _key(
        None, words, "FILE|URL", ("run", "up"), "connection file or URL of a job that already runs"
    )
    bind: str | None = _key(
        None, words, "ENDPOINT", ("up",), "address to listen on, such as tcp://127.0.0.1:0"
    )
    advertise: str | None = _key(
        None, words, "HOST[:PORT]", ("up",),
        "address that others connect to, if not that of --bind; of several, the one that answers",
    )  # fmt: skip
    engine: str = _key(
        "local", one_of("local", "ray"), "local|ray", ("run",),
        "what starts and watches the processes: this command, or Ray (needs luwu-emulator[ray])",
    )  # fmt: skip
    keys: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", ("run", "up", "keys"),
        "directory of keys: encrypt tcp connections, and accept only these keys",
    )  # fmt: skip
    key_name: str | None = _key(
        None, words, "NAME", ("run", "up"),
        "name of the key to use (default: node, switch or worker-{rank}); may contain {local_rank}",
    )  # fmt: skip
    insecure: bool = _key(
        False, boolean, "true|false", ("run", "up"),
        "allow addresses off loopback without keys, on a trusted network; run: only with Ray",
    )  # fmt: skip
    connect_timeout: float = _key(
        60.0, seconds, "TIME", EVERYWHERE, "how long to wait for a process or a connection file"
    )
    grace: float = _key(
        600.0, seconds, "TIME", EVERYWHERE, "how long to wait for a process that stopped responding"
    )


@dataclass(frozen=True, slots=True)
class Key:
    """A row of the table."""

    name: str
    default: Any
    parse: Parser
    shape: str
    verbs: tuple[str, ...]
    text: str

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
    *,
    flags: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    preset: Mapping[str, str] | None = None,
    preset_name: str = "",
) -> Resolved:
    """Read all places, in order. Raises ConfigError.

    `flags` and `preset` map keys to texts; `file` is that of `--config`.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get("LUWU_CONFIG"):
        file = Path(environ["LUWU_CONFIG"]).expanduser()
    texts: dict[str, tuple[str, str, str]] = {}  # key -> (text, name for messages, origin)
    for name, text in (preset or {}).items():
        texts[name] = (text, f"preset {preset_name}: {name}", f"preset {preset_name}")
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
    return Resolved(RunConfig(**values), origins)


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
