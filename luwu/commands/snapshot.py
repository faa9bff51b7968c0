"""`luwu snapshot`: a copy of a state that is itself a state directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from luwu.base.errors import ConfigError
from luwu.commands import form
from luwu.commands.export import CONNECT_NAME, CONNECT_S, OUT, STATE, advise, is_running
from luwu.launch.processes.stopping import stop_requests

if TYPE_CHECKING:
    from luwu.checkpoint.snapshot import Snapshot


@form.command("snapshot", "luwu snapshot luwu-runs/latest before-tuning")
@STATE
@OUT
@form.JSON
def run(where: str, out: Path, as_json: bool) -> int:
    """Copy the last decided step of a state to the new state directory OUT; luwu run --state OUT
    --resume continues from it.

    To copy the state of a running job, give its run directory, its connect.json or the URL that
    luwu up printed; training continues.
    """
    with stop_requests() as should_stop:
        if is_running(where):
            found = _of_running(where, out, should_stop)
        else:
            found = _at_rest(Path(where), out, should_stop)
    document = {
        "schema": 2,
        "out": str(found.path),
        "step": found.version,
        "nodes": found.optimizer_nodes,
        "seconds": found.seconds,
    }
    text = (
        f"{found.path}: step {found.version}, {found.seconds:.1f} s\n"
        f"go on with luwu run --state {found.path} --resume ..."
    )
    return form.show(document, text, as_json=as_json)


def _at_rest(path: Path, out: Path, should_stop: Callable[[], bool]) -> Snapshot:
    from luwu.checkpoint.snapshot import snapshot_at_rest
    from switch_emu.store.striped import node_count_of

    count = node_count_of(path)
    if count is None:
        raise ConfigError(
            f"{path} holds no state; name a state directory, or of a job that is running its run "
            f"directory (which has {CONNECT_NAME} while it runs)"
        )
    try:
        return snapshot_at_rest(path, count, out, should_stop=should_stop)
    except ConfigError as error:
        raise advise(error, "snapshot") from error


def _of_running(where: str, out: Path, should_stop: Callable[[], bool]) -> Snapshot:
    from luwu.checkpoint.snapshot import snapshot_of_running
    from luwu.checkpoint.source import RunningState
    from luwu.join.connection import join

    connection = join(where, timeout_s=CONNECT_S)
    with RunningState.of(connection, where) as source:
        return snapshot_of_running(
            source, out, replicas=connection.replicas, should_stop=should_stop
        )
