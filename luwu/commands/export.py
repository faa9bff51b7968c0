"""`luwu export`: a state as safetensors, for other programs and for `luwu import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from luwu.base.dtypes import WIRE_DTYPES
from luwu.base.errors import ConfigError
from luwu.base.parsers import path
from luwu.base.quantities import format_bytes, parse_bytes
from luwu.commands import form
from luwu.launch.processes.stopping import stop_requests

if TYPE_CHECKING:
    from luwu.checkpoint.source import RestingState, RunningState

CONNECT_NAME: Final = "connect.json"
CONNECT_S: Final = 10.0

STATE: Final = click.argument("where", type=form.Value("STATE_DIR|RUN_DIR|URL"))
OUT: Final = click.argument("out", type=form.Value("OUT", path))
SIZE: Final = form.Value("SIZE", lambda text, name: parse_bytes(text, name=name))


@form.command(
    "export",
    "luwu export luwu-state gpt-export",
    "luwu export luwu-runs/latest gpt-weights --no-optimizer --dtype bfloat16",
)
@STATE
@OUT
@click.option(
    "--dtype",
    type=form.Value("|".join(WIRE_DTYPES)),
    help="data type of the weights (default: float32; other types round, so an import is not "
    "exact)",
)
@click.option("--shard-size", type=SIZE, help="maximum size of a file (default: 4GiB)")
@click.option("--memory-budget", type=SIZE, help="memory for buffers (default: 256MiB)")
@click.option("--no-optimizer", is_flag=True, help="write only the weights")
@click.option(
    "--average",
    is_flag=True,
    help="write only the average of the weights (luwu.ema, luwu.swa), in their place",
)
@form.JSON
def run(
    where: str, out: Path, dtype: str | None, shard_size: int | None, memory_budget: int | None,
    no_optimizer: bool, average: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write the last decided step of a state to the new directory OUT: weights and optimizer state
    as safetensors (in Hugging Face's layout), and luwu.json, from which luwu import restores the
    same state, bit for bit.

    To export a running job, give its run directory, its connect.json or the URL that luwu up
    printed; training continues. A state directory can be exported when no job uses it.
    """
    from luwu.checkpoint.export_state import ExportOptions, export_state

    given: dict[str, Any] = {
        "dtype": dtype,
        "shard_bytes": shard_size,
        "memory_budget_bytes": memory_budget,
    }
    options = ExportOptions(
        has_optimizer=not no_optimizer,
        average=average,
        **{name: value for name, value in given.items() if value is not None},
    )
    with stop_requests() as should_stop, source_of(where, "export") as source:
        found = export_state(source, out, options, should_stop=should_stop)
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
    rate = format_bytes(found.nbytes / max(found.seconds, 1e-9))
    text = (
        f"{found.path}: step {found.step}, {format_bytes(found.nbytes)} in "
        f"{len(found.files)} {'file' if len(found.files) == 1 else 'files'}, "
        f"{found.seconds:.1f} s ({rate}/s)\n"
        f"weights digest {found.weights_digest}"
    )
    return form.show(document, text, as_json=as_json)


def is_running(where: str) -> bool:
    """True if a user named a job that is running."""
    path = Path(where)
    return "://" in where or path.is_file() or (path / CONNECT_NAME).exists()


def source_of(where: str, verb: str) -> RestingState | RunningState:
    """The state that a user of `luwu VERB` named. Raises ConfigError and others."""
    from luwu.checkpoint.source import RestingState, RunningState
    from luwu.join.connection import join

    path = Path(where)
    if is_running(where):
        return RunningState.of(join(where, timeout_s=CONNECT_S), where)
    if not (path / "CONFIG").exists() and (path / "logs").is_dir():
        raise ConfigError(
            f"{path} is the directory of a run that has ended (no {CONNECT_NAME}); give its state "
            "directory, which resolved.json tells"
        )
    try:
        return RestingState(path)
    except ConfigError as error:
        if error.code != IN_USE:
            raise
        text = f"{error} Of a job that is running name its run directory: luwu {verb} RUN_DIR OUT"
        raise ConfigError(text, code=error.code) from error


IN_USE: Final = "E204"
