"""`luwu snapshot`: a copy of a state that is itself a state directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from luwu.base.errors import ConfigError
from luwu.base.foreign import taking
from luwu.base.json_file import read_json
from luwu.commands import form
from luwu.commands.export import CONNECT_NAME, CONNECT_S, OUT, STATE, advise, is_running
from luwu.launch.processes.run_directory import RunDirectory
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
    luwu up printed; training continues. On a file system with reflinks the copy shares its blocks
    with the state; elsewhere the pages are copied.
    """
    with stop_requests() as should_stop:
        if is_running(where):
            found = _of_running(where, out, should_stop)
        else:
            found = _at_rest(Path(where), out, should_stop)
    if as_json:
        document = {
            "schema": 1,
            "out": str(found.path),
            "step": found.version,
            "nodes": found.optimizer_nodes,
            "how": found.how,
            "seconds": found.seconds,
        }
        form.print_json(document)
        return 0
    print(f"{found.path}: step {found.version}, by {found.how}, {found.seconds:.1f} s")
    print(f"go on with luwu run --state {found.path} --resume ...")
    return 0


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
        raise advise(error, path, "snapshot") from error


def _of_running(where: str, out: Path, should_stop: Callable[[], bool]) -> Snapshot:
    from luwu.checkpoint.snapshot import snapshot_by_reflinks, snapshot_of_running
    from luwu.checkpoint.source import RunningState
    from luwu.join.connection import join

    connection = join(where, timeout_s=CONNECT_S)
    count = connection.optimizer_nodes
    state = None if "://" in where else _state_here(Path(where), count)
    if state is not None:
        found = snapshot_by_reflinks(state, count, out, should_stop=should_stop)
        if found is not None:
            return found
    with RunningState.of(connection, where) as source:
        return snapshot_of_running(
            source, out, replicas=connection.replicas, should_stop=should_stop
        )


def _state_here(where: Path, count: int) -> Path | None:
    """The state of a job whose run directory is on this host; None: it is elsewhere, or in RAM."""
    run = RunDirectory(where if where.is_dir() else where.parent)
    with taking(run.path):
        document = read_json(run.role("node.json"))
        state = None if document is None else document["spec"]["state"]
        if state is None or not Path(state).is_dir():
            return None
    return Path(state) if count == 1 else Path(state).parent
