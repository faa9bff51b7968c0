"""`luwu keys`: make, add, take back and list the keys of a job.

    luwu keys init --keys DIR --workers 4     keys of a node, a switch and four workers
    luwu keys init --keys DIR --hosts 2       of a node, a switch, and those of two hosts
    luwu keys add NAME --keys DIR --role worker
    luwu keys revoke NAME --keys DIR          its connections end within a second
    luwu keys list --keys DIR [--json]

The directory is made where the listeners run: its `allowed.json` says whom they let in. To another
machine goes the one file that its process needs, DIR/NAME.secret, in a directory of mode 0700.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from luwu.base.config import Resolved
from luwu.base.directories import locked
from luwu.base.errors import ConfigError
from luwu.base.keys import (
    ALLOWED,
    SECRET_SUFFIX,
    Identity,
    check_name,
    key_role,
    key_text,
    make_directory,
    read_allowed,
    remove_secret,
    write_allowed,
    write_secret,
)
from luwu.base.limits import NODE_COUNT_MAX, WORLD_SIZE_MAX
from luwu.base.parsers import whole
from luwu.base.tree import tree_of_hosts
from luwu.commands import form
from luwu.transport.curve import new_key_pair

DEFAULT_DIRECTORY: Final = Path("luwu-keys")
OF_KEYS: Final = form.keys_of("keys")
NAME: Final = click.argument("name")

run = form.Commands(
    "keys",
    text="Create, revoke and list the keys of the processes that may connect to a job. A key is "
    "named after its process: node, switch, worker-0. A running job applies changes at once.",
    examples=("luwu keys init --keys luwu-keys --workers 4", "luwu keys list --keys luwu-keys"),
)


def _directory(resolved: Resolved) -> Path:
    return resolved.config.keys or DEFAULT_DIRECTORY


@form.command("init", "luwu keys init --keys luwu-keys --workers 4", keys=OF_KEYS, of=run)
@click.option(
    "--workers",
    type=form.Value("N", whole(1, WORLD_SIZE_MAX)),
    default=2,
    help="number of workers (default: 2)",
)
@click.option(
    "--hosts",
    type=form.Value("N", whole(1, WORLD_SIZE_MAX)),
    default=1,
    help="number of hosts with a switch each, which have a key in place of workers (default: 1)",
)
@click.option(
    "--optimizer-nodes",
    type=form.Value("N", whole(1, NODE_COUNT_MAX)),
    default=1,
    help="number of optimizer nodes (default: 1)",
)
def init(resolved: Resolved, workers: int, hosts: int, optimizer_nodes: int) -> int:
    """Create the keys of a job: of a switch, of its optimizer nodes, and of its workers or the
    switches of their hosts."""
    directory = _directory(resolved)
    make_directory(directory)
    if (directory / ALLOWED).exists():
        raise ConfigError(
            f"{directory} has keys already; luwu keys add NAME makes one more; for new "
            "keys, name another directory"
        )
    wanted = [Identity("node", "node"), Identity("switch", "switch")]
    wanted += [Identity(f"node-{number}", "node") for number in range(1, optimizer_nodes)]
    joining = [Identity(f"worker-{rank}", "worker") for rank in range(workers)]
    if hosts > 1:
        leaves = tree_of_hosts(hosts, hosts).places[1:]
        joining = [Identity(place.process, "switch") for place in leaves]
    wanted += joining
    allowed = {}
    for identity in wanted:
        public, secret = new_key_pair()
        write_secret(directory, identity.name, secret)
        allowed[public] = identity
    write_allowed(directory, allowed)
    print(f"{len(wanted)} keys in {directory} (mode 700): node, switch, {joining[0].name} ...")
    hosts_flag = f" --hosts {hosts}" if hosts > 1 else ""
    print(f"start   luwu up --keys {directory}{hosts_flag} --bind tcp://ADDRESS:0")
    print(f"copy    {directory}/NAME{SECRET_SUFFIX} to where NAME runs, and nothing else")
    return 0


@form.command("add", "luwu keys add evaluator --role reader --keys luwu-keys", keys=OF_KEYS, of=run)
@NAME
@click.option(
    "--role",
    type=form.Value("worker|reader|switch|node", key_role),
    required=True,
    help="what the key is for",
)
def add(resolved: Resolved, name: str, role: str) -> int:
    """Create one more key."""
    directory, identity = _directory(resolved), Identity(check_name(name), role)
    with locked(directory):
        allowed = read_allowed(directory)
        if identity.name in {each.name for each in allowed.values()}:
            raise ConfigError(
                f"{identity.name} has a key already; luwu keys revoke {name} first, or choose "
                "another name"
            )
        public, secret = new_key_pair()
        remove_secret(directory, name)  # of one that was taken back
        write_secret(directory, name, secret)
        write_allowed(directory, {**allowed, public: identity})
    print(f"{name}: a {identity.role}'s key in {directory}/{name}{SECRET_SUFFIX} (mode 600)")
    return 0


@form.command("revoke", "luwu keys revoke worker-3 --keys luwu-keys", keys=OF_KEYS, of=run)
@NAME
def revoke(resolved: Resolved, name: str) -> int:
    """Revoke a key; running jobs that use DIR close its connections within a second."""
    directory = _directory(resolved)
    with locked(directory):
        allowed = read_allowed(directory)
        left = {key: each for key, each in allowed.items() if each.name != name}
        if len(left) == len(allowed):
            known = ", ".join(each.name for each in allowed.values()) or "none"
            raise ConfigError(f"{directory} has no key {name!r}; it has {known}")
        write_allowed(directory, left)
        remove_secret(directory, name)
    print(
        f"{name} may no longer connect, and running processes that use {directory} close its "
        "connections now; for processes on other hosts revoke it in their key directory too"
    )
    return 0


@form.command("list", "luwu keys list --keys luwu-keys", keys=OF_KEYS, of=run)
@form.JSON
def list_keys(resolved: Resolved, as_json: bool) -> int:
    """List the keys that are accepted, their roles, and whether their secrets are here."""
    directory = _directory(resolved)
    rows = [
        {
            "name": identity.name,
            "role": identity.role,
            "public_key": key_text(key),
            "secret_is_here": os.access(directory / f"{identity.name}{SECRET_SUFFIX}", os.R_OK),
        }
        for key, identity in read_allowed(directory).items()
    ]
    text = "\n".join(
        f"{row['name']:<16} {row['role']:<8} {row['public_key']}  "
        f"secret {'here' if row['secret_is_here'] else 'elsewhere'}"
        for row in rows
    )
    document = {"schema": 1, "directory": str(directory), "keys": rows}
    return form.show(document, text, as_json=as_json)
