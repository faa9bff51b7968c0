"""`luwu refill`: directories of optimizer nodes, made again from those that hold the same pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.limits import NODE_COUNT_MAX
from luwu.base.parsers import whole
from luwu.base.quantities import format_bytes
from luwu.commands.flags import JSON_FLAG, Flag, Parsed, Verb
from luwu.launch.processes.stopping import stop_requests

VERB: Final = Verb(
    name="refill",
    usage="luwu refill STATE_DIR [--replicas R] [--without N,...] [--json]",
    text=(
        "Make the missing directories (node-0, node-1, ...) of a state whose job ran with "
        "--replicas, from the nodes that hold the same pages. No job may use the state. Every "
        "page is verified while it is copied; luwu run --state STATE_DIR --resume then continues "
        "from the last decided step. With --replicas, all directories are made again that do not "
        "hold so many of each page, more or fewer than before. If lost nodes may have gone on "
        "alone, so that the others do not know the last step, give --without to go on without "
        "them; it prints which steps are lost then."
    ),
    examples=("luwu refill luwu-state --without 1", "luwu refill luwu-state --replicas 2"),
    flags=(
        Flag(
            name="replicas",
            shape="R",
            text="optimizer nodes that hold each page from now on",
        ),
        Flag(
            name="without",
            shape="N,...",
            text="numbers of nodes to give up, with steps that only they may have",
        ),
        JSON_FLAG,
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    from luwu.checkpoint.refill import refill

    if len(parsed.rest) != 1:
        raise ConfigError(f"name a state directory; usage: {VERB.usage_text}")
    path = Path(parsed.rest[0])
    number, text = whole(0, NODE_COUNT_MAX), parsed.flags.get("without", "")
    without = [number(each, "--without") for each in text.split(",") if text]
    replicas = parsed.flags.get("replicas")
    with stop_requests() as should_stop:
        found = refill(
            path,
            replicas=None if replicas is None else whole(1, NODE_COUNT_MAX)(replicas, "--replicas"),
            without=without,
            should_stop=should_stop,
        )
    if parsed.has("json"):
        document = {
            "schema": 1, "state": str(found.path), "step": found.version,
            "replicas": found.replicas, "nodes": list(found.nodes),
            "given_up": list(found.given_up), "bytes": found.nbytes, "seconds": found.seconds,
        }  # fmt: skip
        print(json.dumps(document, indent=1))
        return 0
    numbers = ", ".join(map(str, found.nodes))
    print(
        f"{path}: node {numbers} filled at step {found.version}, {format_bytes(found.nbytes)} in "
        f"{found.seconds:.1f} s"
    )
    if found.given_up:
        given_up = ", ".join(map(str, found.given_up))
        print(f"steps from {found.version} on that only node {given_up} had decided are lost")
    nodes = f"--optimizer-nodes {found.count} --replicas {found.replicas}"
    print(f"go on with luwu run --state {path} {nodes} --resume ...")
    return 0
