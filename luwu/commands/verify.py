"""`luwu verify`: is a state whole?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from luwu.base.errors import ConfigError, StateError
from luwu.base.parsers import path
from luwu.base.quantities import format_bytes
from luwu.commands import form
from luwu.launch.processes.stopping import stop_requests

if TYPE_CHECKING:
    from switch_emu.store.verify import NodeFound, StateFound


@form.command("verify", "luwu verify luwu-state", "luwu verify --full luwu-state")
@click.argument("state", type=form.Value("STATE_DIR", path))
@click.option("--full", is_flag=True, help="read all pages and attachments")
@form.JSON
def run(state: Path, full: bool, as_json: bool) -> int:
    """Check a state directory that no job uses, and show its step and any damage. It changes
    nothing. Without --full, it reads only what a start needs: configuration, superblock and
    manifests of each node. The exit code is 0 if the state is intact, 5 if it is damaged."""
    from switch_emu.store.striped import node_count_of
    from switch_emu.store.verify import verify_state

    count = node_count_of(state)
    if count is None:
        raise ConfigError(f"{state} holds no state; name the directory that --state named")
    with stop_requests() as should_stop:
        found = verify_state(state, count, full=full, should_stop=should_stop)
    text = "\n".join(_lines(found, is_full=full))
    form.show(_document(found, is_full=full), text, as_json=as_json)
    return StateError.exit_code if found.damages else 0


def _lines(found: StateFound, *, is_full: bool) -> list[str]:
    lines = [line for node in found.nodes for line in _node_lines(node)]
    for number in found.left_out:
        lines.append(
            f"node {number} was left out, and others hold its pages: luwu refill {found.path} "
            "makes its directory again"
        )
    for damage in found.damages:
        lines.append(f"DAMAGED {damage}")
    if found.damages:
        lines.append(f"{found.path} is damaged in {len(found.damages)} places")
        lines.append("restore it from the last export or snapshot (docs/storage.md)")
    else:
        lines.append(_whole(found, is_full=is_full))
    return lines


def _whole(found: StateFound, *, is_full: bool) -> str:
    if is_full:
        return f"{found.path} is whole (every page read)"
    pages = sum(node.pages_count for node in found.nodes)
    state_bytes = sum(node.state_bytes for node in found.nodes)
    return (
        f"{found.path}: configuration, superblock and manifests are whole; NOT READ: {pages} pages "
        f"({format_bytes(state_bytes)}) and what workers attached; luwu verify {found.path} --full "
        "reads them"
    )


def _node_lines(node: NodeFound) -> list[str]:
    if node.generation is None:
        return [f"{node.directory}: cannot be opened"]
    version = "no weights yet" if node.version is None else f"version {node.version}"
    lines = [
        f"{node.directory}: {version}, {node.pages_count} pages, "
        f"{format_bytes(node.state_bytes)} of state, opened {node.generation} times, last with "
        f"durability {node.durability or 'unknown'}"
    ]
    if node.prepared is not None:
        lines.append(f"  version {node.prepared} is prepared: the next start settles it")
    lines += [f"  survived: {note}; the next start repairs it" for note in node.survived]
    return lines


def _document(found: StateFound, *, is_full: bool) -> dict[str, Any]:
    nodes = [{**asdict(node), "directory": str(node.directory)} for node in found.nodes]
    return {
        "schema": 2,
        "state": str(found.path),
        "full": is_full,
        "whole": not found.damages,
        "version": found.version,
        "damages": found.damages,
        "nodes": nodes,
        "left_out": found.left_out,
    }
