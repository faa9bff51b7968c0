"""The configuration of a run: one table of keys, read from four places in one order.

    defaults  <  preset  <  TOML file (`--config FILE` or LUWU_CONFIG)  <  LUWU_<KEY>  <  flags

A key has one name everywhere: `memory_budget` in the file, LUWU_MEMORY_BUDGET in the environment,
`--memory-budget` on the command line. Its value is a text with the same units in all of them, read
by the same parser. A key that nobody knows is an error wherever it stands, and an unset key is not
the same as one set to its default: `Resolved.origins` says who set what.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.limits import (
    HOSTS_MAX,
    INT64_MAX,
    NODE_COUNT_MAX,
    STRIPES_MAX,
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
    seconds,
    size_or_auto,
    whole,
    words,
)
from luwu.base.quantities import exact_size
from luwu.base.suggestion import suggestion

ENVIRONMENT_PREFIX: Final = "LUWU_"
ENVIRONMENT_ONLY: Final = {
    "LUWU_CONFIG": "TOML file to read when --config is not given",
    "LUWU_CONNECT": "connection file or URL; the launcher sets it for workers",
    "LUWU_EVENTS": "directory for a worker's events; the launcher sets it",
    "LUWU_FAILPOINTS": "places where a test makes a process fail",
    "LUWU_INCARNATION": "number of this start of a worker; the launcher sets it",
    "LUWU_RUN_ID": "marks the processes of a run; the launcher sets it",
}
"""Variables that are no keys."""

INFINITY: Final = "zero-infinity"
ARM_NAMES: Final = (
    "luwu", "luwu_ram", "fsdp", "fsdp_offload", "ddp", "single", "ina-allreduce", "ps",
    "zero3-offload", INFINITY,
)  # fmt: skip
ZERO_ARMS: Final = ("zero3-offload", INFINITY)
"""DeepSpeed's."""
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
    """Every key of `luwu compare`, `run` and `up`; None where the program decides and prints it."""

    workers: int = _key(
        2, whole(1, WORLD_SIZE_MAX), "N", EVERYWHERE, "training processes of the job"
    )
    steps: int | None = _key(
        None, whole(1), "N", COMPARING, "optimizer updates; workers/train.py's own unless given"
    )
    arms: tuple[str, ...] = _key(
        ("luwu", "fsdp"), arm_names, "A,B", COMPARING,
        "who keeps weights and sums gradients: " + ", ".join(ARM_NAMES),
    )  # fmt: skip
    json: str | None = _key(
        None, words, "FILE|-", COMPARING, "write the results there too; - prints them"
    )
    data: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", COMPARING,
        "text, or .bin of uint16 tokens; the source of Python's library unless given",
    )  # fmt: skip
    seed: int = _key(
        0, whole(0), "N", EVERYWHERE,
        "every random number derives from it; of run and up, those of emulated links",
    )  # fmt: skip
    dtype: str = _key(
        "float32", one_of("float32", "bfloat16"), "float32|bfloat16", COMPARING,
        "dtype of compute, weights and gradients on the wire",
    )  # fmt: skip
    layers: int | None = _key(None, whole(1), "N", COMPARING, "blocks of the built-in GPT")
    width: int | None = _key(None, whole(1), "N", COMPARING, "width of its residual stream")
    batch: int | None = _key(None, whole(1), "N", COMPARING, "samples of one worker in a step")
    context: int | None = _key(None, whole(1), "N", COMPARING, "tokens in a sample")
    max_grad_norm: float | None = _key(
        None, number(above_zero=True), "X", COMPARING, "clip the gradient to this norm"
    )
    compute_ms: float | None = _key(
        None, number(above_zero=False), "X", COMPARING,
        "least milliseconds of each unit's forward, and of its backward",
    )  # fmt: skip
    reshard_after_forward: bool | None = _key(
        None, boolean, "true|false", EVERYWHERE,
        "free a unit's weights between forward and backward; FSDP2's rule unless given",
    )  # fmt: skip
    transport: str = _key(
        "auto", one_of("auto", "tcp", "ipc", "shm"), "auto|tcp|ipc|shm", SERVING,
        "how processes talk; auto: shared memory on one host",
    )  # fmt: skip
    stripes: int = _key(
        1, whole(1, STRIPES_MAX), "N", SERVING, "connections that a link is spread over; not of shm"
    )
    aggregate: str = _key(
        "float32", words, "float32|shared-exponent|fixed-scale|NAME", SERVING,
        "how gradients are added in the network; NAME is another package's",
    )  # fmt: skip
    aggregate_scale: float | None = _key(
        None, number(above_zero=True), "X", SERVING,
        "integers of fixed-scale are gradient times this; 2**24 unless given",
    )  # fmt: skip
    chunk: int | None = _key(
        None, chunk_size, "SIZE|auto", SERVING,
        "float32 gradient bytes that are stored together, as a page; auto follows budget and links",
    )  # fmt: skip
    extent: int | None = _key(
        None, chunk_size, "SIZE|auto", SERVING,
        "bytes of neighbouring chunks that travel together; auto: as the budget allows, up to 1MiB",
    )  # fmt: skip
    memory_budget: int | None = _key(
        None, size_or_auto, "SIZE|auto", SERVING,
        "all the optimizer node may allocate; auto: half of the free memory",
    )  # fmt: skip
    switch_memory_budget: int | None = _key(
        None, size_or_auto, "SIZE|auto", SERVING,
        "each switch's, for gradients, and weights with what they leave; auto: 512MiB",
    )  # fmt: skip
    durability: str = _key(
        "step", one_of("step", "process", "none"), "step|process|none", SERVING,
        "what a decided step survives: power loss, the end of processes, nothing",
    )  # fmt: skip
    no_switch: bool = _key(
        False, boolean, "true|false", SERVING, "workers talk to the node itself; one host only"
    )
    link: Links | None = _key(  # noqa: RUF009 - it makes a field
        None, parse_links, "SPEC", SERVING,
        "emulate links: 10gbit, 100gbe, rate=1gbit,delay=0.2ms,queue=4MiB, worker=SPEC;node=SPEC",
    )  # fmt: skip
    loss: float | None = _key(
        None, parse_ratio, "X", SERVING, "share of messages that each emulated link loses"
    )
    duplicate: float | None = _key(
        None, parse_ratio, "X", SERVING, "share of messages that each emulated link repeats"
    )
    reorder: int | None = _key(
        None, parse_window, "N", SERVING,
        "how many later messages may overtake one on an emulated link",
    )  # fmt: skip
    disk_rate: float | None = _key(
        None, parse_rate, "RATE", SERVING, "emulate a disk of this rate for the node's pages: 2GB/s"
    )
    dilation: float = _key(
        1.0, parse_dilation, "X", SERVING,
        "slow emulated links, the emulated disk and --compute-ms down by this factor",
    )  # fmt: skip
    fidelity: str = _key(
        "functional", one_of("functional", "protocol", "timed"), "functional|protocol|timed",
        SERVING, "of the switch: memory as it needs; a programmable switch's slots; and with links",
    )  # fmt: skip
    slots: int | None = _key(
        None, whole(1), "N", SERVING,
        "slots of the switch in protocol fidelity, two copies each; up to 256 unless given",
    )  # fmt: skip
    tree: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", SERVING, "TOML of switches, their parents and workers: docs/trees.md"
    )
    hosts: int | None = _key(
        None, whole(1, HOSTS_MAX), "H", COMPARING,
        "run the arms on so many hosts, made of network namespaces: docs/hosts.md",
    )  # fmt: skip
    optimizer_nodes: int = _key(
        1, whole(1, NODE_COUNT_MAX), "N", SERVING,
        "nodes that the pages are striped over; each keeps its own directory in --state",
    )  # fmt: skip
    state: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", SERVING,
        "where the node keeps the training state; luwu-state, or the run directory of compare",
    )  # fmt: skip
    resume: bool = _key(
        False, boolean, "true|false", SERVING, "go on with the steps that --state holds"
    )
    restarts: int = _key(
        3, whole(0), "N", SERVING, "times a switch or node that died is started again, in all"
    )
    on_lost_steps: str = _key(
        "stop", one_of("stop", "redo"), "stop|redo", SERVING,
        "where decided steps are lost with a node's disk: end the run; go on from the older step",
    )  # fmt: skip
    on_worker_loss: str = _key(
        "stop",
        one_of("stop", "wait", "drop"),
        "stop|wait|drop",
        SERVING,
        "a lost worker ends the run; is started again while the others wait; is left out",
    )
    drop_after: float = _key(
        10.0,
        seconds,
        "TIME",
        SERVING,
        "how long a worker may be away, or later than usual, before it is left out",
    )
    workers_min: int = _key(
        1,
        whole(1, WORLD_SIZE_MAX),
        "N",
        SERVING,
        "workers without which the job waits, where lost ones are left out",
    )
    run_dir: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", EVERYWHERE, "directory of this run; luwu-runs/<time>-<id> unless given"
    )
    tensorboard: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", ("run",),
        "write what the script records with luwu.log there, as TensorBoard event files",
    )  # fmt: skip
    trace: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "FILE", TRAINING, "write a timeline of the run there; Perfetto opens it"
    )
    worker_restarts: int | None = _key(
        None, whole(0), "N", TRAINING,
        "times lost workers are started again: all of them where on_worker_loss is "
        "stop (0), else the lost one alone (wait: 3, drop: 0); the step is replayed",
    )  # fmt: skip
    worker_hosts: int = _key(
        1, whole(1, WORLD_SIZE_MAX), "N", ("run",),
        "hosts that share the workers; the same command on each, with --join and --rendezvous",
    )  # fmt: skip
    rendezvous: str | None = _key(
        None, host_and_port, "HOST:PORT", ("run",),
        "where the hosts' torchruns meet: an address of one of them, and a free port",
    )  # fmt: skip
    job: int | None = _key(
        None, whole(1, INT64_MAX), "N", ("up",),
        "number of the job in the URL; random unless given. Fix it where an engine restarts roles",
    )  # fmt: skip
    join: str | None = _key(
        None, words, "FILE|URL", ("run", "up"), "connection file or URL of what runs already"
    )
    bind: str | None = _key(
        None, words, "ENDPOINT", ("up",), "where to listen, such as tcp://127.0.0.1:0"
    )
    advertise: str | None = _key(
        None, words, "HOST[:PORT]", ("up",), "what others dial, where it differs from --bind"
    )
    engine: str = _key(
        "local", one_of("local", "ray"), "local|ray", ("run",),
        "who places and watches the processes: this command, or Ray (extra luwu-emulator[ray])",
    )  # fmt: skip
    keys: Path | None = _key(  # noqa: RUF009 - it makes a field
        None, path, "DIR", ("run", "up", "keys"),
        "directory of keys: tcp connections are encrypted, and only its keys are let in",
    )  # fmt: skip
    key_name: str | None = _key(
        None, words, "NAME", ("run", "up"),
        "which key is ours; node, switch and worker-{rank} unless given, and {local_rank} is known",
    )  # fmt: skip
    insecure: bool = _key(
        False, boolean, "true|false", ("run", "up"),
        "off loopback without keys, on a network you trust; of run, with --engine ray",
    )  # fmt: skip
    connect_timeout: float = _key(
        60.0, seconds, "TIME", EVERYWHERE, "how long to wait for a process or a connection file"
    )
    grace: float = _key(
        600.0, seconds, "TIME", EVERYWHERE, "how long a silent member is waited for"
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
    return Resolved(RunConfig(**values), origins)


def _read_file(file: Path) -> dict[str, str]:
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"cannot read the configuration {file}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file} is not TOML: {exc}") from exc
    texts = {}
    for written, value in document.items():
        name = written.replace("-", "_")
        if name not in KEYS:
            raise ConfigError(
                f"{file}: unknown key {written!r}{suggestion(name, KEYS)}", code="E201"
            )
        texts[name] = _text_of(value, f"{file}: {written}")
    return texts


def _text_of(value: object, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(f"{where}: {value!r:.60} is no value of a key; write a text, number or list")


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
