"""`luwu refill`: the directory of a lost optimizer node, made again from its replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import format_bytes
from luwu.commands.flags import JSON_FLAG, Parsed, Verb
from luwu.launch.processes.stopping import stop_requests

VERB: Final = Verb(
    name="refill",
    usage="luwu refill STATE_DIR [--json]",
    text=(
        "Make the missing directories (node-0, node-1, ...) of a state whose job ran with "
        "--replicas, from the nodes that hold the same pages. No job may use the state. Every "
        "page is verified while it is copied; luwu run --state STATE_DIR --resume then continues "
        "from the last decided step."
    ),
    examples=("luwu refill luwu-state",),
    flags=(JSON_FLAG,),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    from luwu.checkpoint.refill import refill

    if len(parsed.rest) != 1:
        raise ConfigError(f"name a state directory; usage: {VERB.usage_text}")
    path = Path(parsed.rest[0])
    with stop_requests() as should_stop:
        found = refill(path, should_stop=should_stop)
    if parsed.has("json"):
        document = {
            "schema": 1, "state": str(found.path), "step": found.version,
            "nodes": list(found.nodes), "bytes": found.nbytes, "seconds": found.seconds,
        }  # fmt: skip
        print(json.dumps(document, indent=1))
        return 0
    numbers = ", ".join(map(str, found.nodes))
    print(
        f"{path}: node {numbers} filled at step {found.version}, {format_bytes(found.nbytes)} in "
        f"{found.seconds:.1f} s"
    )
    print(f"go on with luwu run --state {path} --resume ...")
    return 0
