"""`luwu export`: a state as safetensors, for other programs and for `luwu import`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes, parse_bytes
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.launch.processes.stopping import stop_requests
from luwu.launch.state_users import advise

if TYPE_CHECKING:
    from luwu.checkpoint.running import RunningState
    from luwu.checkpoint.source import RestingState

CONNECT_NAME: Final = "connect.json"
CONNECT_S: Final = 10.0

VERB: Final = Verb(
    name="export",
    usage="luwu export STATE_DIR|RUN_DIR|URL OUT [flags]",
    text=(
        "Write the last decided step of a state to the new directory OUT: weights and optimizer "
        "state as safetensors (in Hugging Face's layout), and luwu.json, from which luwu import "
        "restores the same state, bit for bit.\n\n"
        "To export a running job, give its run directory, its connect.json or the URL that luwu up "
        "printed; training continues. A state directory can be exported when no job uses it."
    ),
    examples=(
        "luwu export luwu-state gpt-export",
        "luwu export luwu-runs/latest gpt-weights --no-optimizer --dtype bfloat16",
    ),
    flags=(
        Flag(
            name="dtype",
            shape="float32|bfloat16|float16",
            text="data type of the weights (default: float32; other types round, so an import is "
            "not exact)",
        ),
        Flag(name="shard_size", shape="SIZE", text="maximum size of a file (default: 4GiB)"),
        Flag(name="memory_budget", shape="SIZE", text="memory for buffers (default: 256MiB)"),
        Flag(name="no_optimizer", text="write only the weights"),
        Flag(
            name="average",
            text="write only the average of the weights (luwu.ema, luwu.swa), in their place",
        ),
        Flag(name="json", text="print JSON"),
    ),
    has_keys=False,
    rest="two",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    if len(parsed.rest) != 2:
        raise ConfigError(f"name a state directory and where to write; usage: {VERB.usage_text}")
    from luwu.checkpoint.export_state import ExportOptions, export_state

    where, out = parsed.rest[0], Path(parsed.rest[1])
    values = parsed.flags
    defaults = ExportOptions()
    options = ExportOptions(
        dtype=values.get("dtype", defaults.dtype),
        shard_bytes=size_of(values, "shard_size", defaults.shard_bytes),
        memory_budget_bytes=size_of(values, "memory_budget", defaults.memory_budget_bytes),
        has_optimizer=not parsed.has("no_optimizer"),
        average=parsed.has("average"),
    )
    try:
        opened = _source(where)
    except ConfigError as error:
        raise advise(error, Path(where), "export") from error
    with stop_requests() as should_stop, opened as source:
        found = export_state(source, out, options, should_stop=should_stop)
    if parsed.has("json"):
        document = {
            "schema": 1,
            "out": str(found.path),
            "step": found.step,
            "weights_digest": found.weights_digest,
            "bytes": found.nbytes,
            "buffer_bytes": found.buffer_bytes,
            "seconds": found.seconds,
            "files": found.files,
        }
        print(json.dumps(document, indent=1))
        return 0
    rate = format_bytes(found.nbytes / max(found.seconds, 1e-9))
    print(
        f"{found.path}: step {found.step}, {format_bytes(found.nbytes)} in "
        f"{len(found.files)} {'file' if len(found.files) == 1 else 'files'}, "
        f"{found.seconds:.1f} s ({rate}/s)"
    )
    print(f"weights digest {found.weights_digest}")
    return 0


def _source(where: str) -> RestingState | RunningState:
    """The state that a user named. Raises ConfigError and others."""
    from luwu.checkpoint.running import RunningState
    from luwu.checkpoint.source import RestingState
    from luwu.join.connection import join

    path = Path(where)
    if "://" in where or path.is_file() or (path / CONNECT_NAME).exists():
        return RunningState.of(join(where, timeout_s=CONNECT_S), where)
    if not (path / "CONFIG").exists() and (path / "logs").is_dir():
        raise ConfigError(
            f"{path} is the directory of a run that has ended (no {CONNECT_NAME}); give its state "
            "directory, which resolved.json tells"
        )
    return RestingState(path)


def size_of(values: dict[str, str], name: str, default: int) -> int:
    """A size among flags. Raises ConfigError."""
    return parse_bytes(values[name], name=name) if name in values else default
