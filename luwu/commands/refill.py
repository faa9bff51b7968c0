"""`luwu refill`: directories of optimizer nodes, made again from those that hold the same pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from luwu.base.limits import NODE_COUNT_MAX
from luwu.base.parsers import path, whole
from luwu.base.quantities import format_bytes
from luwu.commands import form
from luwu.launch.processes.stopping import stop_requests


def _numbers(text: str, name: str) -> list[int]:
    number = whole(0, NODE_COUNT_MAX)
    return [number(each, name) for each in text.split(",") if text]


@form.command("refill", "luwu refill luwu-state --without 1", "luwu refill luwu-state --replicas 2")
@click.argument("state", type=form.Value("STATE_DIR", path))
@click.option(
    "--replicas",
    type=form.Value("R", whole(1, NODE_COUNT_MAX)),
    help="optimizer nodes that hold each page from now on",
)
@click.option(
    "--without",
    type=form.Value("N,...", _numbers),
    default=(),
    help="numbers of nodes to give up, with steps that only they may have",
)
@form.JSON
def run(state: Path, replicas: int | None, without: Sequence[int], as_json: bool) -> int:
    """Make the missing directories (node-0, node-1, ...) of a state whose job ran with --replicas,
    from the nodes that hold the same pages. No job may use the state. Every page is verified while
    it is copied; luwu run --state STATE_DIR --resume then continues from the last decided step.
    With --replicas, all directories are made again that do not hold so many of each page, more or
    fewer than before. If lost nodes may have gone on alone, so that the others do not know the last
    step, give --without to go on without them; it prints which steps are lost then."""
    from luwu.checkpoint.refill import refill

    with stop_requests() as should_stop:
        found = refill(state, replicas=replicas, without=without, should_stop=should_stop)
    document = {
        "schema": 1, "state": str(found.path), "step": found.version,
        "replicas": found.replicas, "nodes": list(found.nodes),
        "given_up": list(found.given_up), "bytes": found.nbytes, "seconds": found.seconds,
    }  # fmt: skip
    numbers = ", ".join(map(str, found.nodes))
    text = (
        f"{state}: node {numbers} filled at step {found.version}, {format_bytes(found.nbytes)} in "
        f"{found.seconds:.1f} s\n"
    )
    if found.given_up:
        given_up = ", ".join(map(str, found.given_up))
        text += f"steps from {found.version} on that only node {given_up} had decided are lost\n"
    nodes = f"--optimizer-nodes {found.count} --replicas {found.replicas}"
    text += f"go on with luwu run --state {state} {nodes} --resume ..."
    return form.show(document, text, as_json=as_json)
