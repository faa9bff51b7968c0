"""`luwu snapshot`: a copy of a state that is itself a state directory."""

from __future__ import annotations

from pathlib import Path

from luwu.commands import form
from luwu.commands.export import OUT, STATE, source_of
from luwu.launch.processes.stopping import stop_requests


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
    from luwu.checkpoint.snapshot import take_snapshot

    with stop_requests() as should_stop, source_of(where, "snapshot") as source:
        found = take_snapshot(source, out, should_stop=should_stop)
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
