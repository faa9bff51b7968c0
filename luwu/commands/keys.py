"""`luwu keys`: make, add, take back and list the keys of a job.

    luwu keys init --keys DIR --workers 4     keys of a node, a switch and four workers
    luwu keys add NAME --keys DIR --role worker
    luwu keys revoke NAME --keys DIR          its connections end within a second
    luwu keys list --keys DIR [--json]

The directory is made where the listeners run: its `allowed.json` says whom they let in. To another
machine goes the one file that its process needs, DIR/NAME.secret, in a directory of mode 0700.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.keys import (
    ALLOWED,
    SECRET_SUFFIX,
    Identity,
    check_name,
    check_role,
    key_text,
    make_directory,
    read_allowed,
    remove_secret,
    write_allowed,
    write_secret,
)
from luwu.base.limits import NODE_COUNT_MAX, WORLD_SIZE_MAX
from luwu.base.locked import locked
from luwu.base.parsers import whole
from luwu.commands.flags import JSON_FLAG, Flag, Parsed, Verb, resolve_parsed
from luwu.transport.curve import new_key_pair

INIT: Final = Verb(
    name="keys init",
    usage="luwu keys init --keys DIR [--workers N] [--optimizer-nodes N]",
    text="Create the keys of a job: of a switch, of its optimizer nodes and of its workers.",
    examples=("luwu keys init --keys luwu-keys --workers 4",),
    flags=(
        Flag(name="workers", shape="N", text="number of workers (default: 2)"),
        Flag(name="optimizer_nodes", shape="N", text="number of optimizer nodes (default: 1)"),
    ),
)
ADD: Final = Verb(
    name="keys add",
    usage="luwu keys add NAME --role worker|reader|switch|node --keys DIR",
    text="Create one more key.",
    examples=("luwu keys add evaluator --role reader --keys luwu-keys",),
    flags=(
        Flag(name="role", shape="worker|reader|switch|node", text="what the key is for"),
    ),
    rest="one",
)  # fmt: skip
REVOKE: Final = Verb(
    name="keys revoke",
    usage="luwu keys revoke NAME --keys DIR",
    text="Revoke a key; running jobs that use DIR close its connections within a second.",
    examples=("luwu keys revoke worker-3 --keys luwu-keys",),
    rest="one",
)
LIST: Final = Verb(
    name="keys list",
    usage="luwu keys list --keys DIR [--json]",
    text="List the keys that are accepted, their roles, and whether their secrets are here.",
    examples=("luwu keys list --keys luwu-keys",),
    flags=(JSON_FLAG,),
)
VERB: Final = Verb(
    name="keys",
    usage="luwu keys COMMAND ... --keys DIR",
    text="Create, revoke and list the keys of the processes that may connect to a job. A key is "
    "named after its process: node, switch, worker-0. A running job applies changes at once.",
    examples=("luwu keys init --keys luwu-keys --workers 4", "luwu keys list --keys luwu-keys"),
    commands={"init": INIT, "add": ADD, "revoke": REVOKE, "list": LIST},
    has_keys=False,
)
DEFAULT_DIRECTORY: Final = Path("luwu-keys")


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    verb = parsed.verb
    directory = resolve_parsed(verb, parsed).config.keys or DEFAULT_DIRECTORY
    if verb.rest == "one" and not parsed.rest:
        raise ConfigError(f"luwu {verb.name} needs the name of a key; usage: {verb.usage}")
    does = {INIT.name: _init, ADD.name: _add, REVOKE.name: _revoke, LIST.name: _list}
    does[verb.name](directory, parsed.rest[0] if parsed.rest else "", parsed)
    return 0


def _init(directory: Path, name: str, parsed: Parsed) -> None:
    workers = whole(1, WORLD_SIZE_MAX)(parsed.flags.get("workers", "2"), "--workers")
    nodes = whole(1, NODE_COUNT_MAX)(parsed.flags.get("optimizer_nodes", "1"), "--optimizer-nodes")
    make_directory(directory)
    if (directory / ALLOWED).exists():
        raise ConfigError(
            f"{directory} has keys already; luwu keys add NAME makes one more; for new "
            "keys, name another directory"
        )
    wanted = [Identity("node", "node"), Identity("switch", "switch")]
    wanted += [Identity(f"node-{number}", "node") for number in range(1, nodes)]
    wanted += [Identity(f"worker-{rank}", "worker") for rank in range(workers)]
    allowed = {}
    for identity in wanted:
        public, secret = new_key_pair()
        write_secret(directory, identity.name, secret)
        allowed[public] = identity
    write_allowed(directory, allowed)
    print(f"{len(wanted)} keys in {directory} (mode 700): node, switch, worker-0 ...")
    print(f"start   luwu up --keys {directory} --bind tcp://ADDRESS:0")
    print(f"copy    {directory}/NAME{SECRET_SUFFIX} to where NAME runs, and nothing else")


def _add(directory: Path, name: str, parsed: Parsed) -> None:
    if "role" not in parsed.flags:
        raise ConfigError(f"luwu keys add {name}: say what it is for with --role")
    identity = Identity(check_name(name), check_role(parsed.flags["role"]))
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


def _revoke(directory: Path, name: str, parsed: Parsed) -> None:
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


def _list(directory: Path, name: str, parsed: Parsed) -> None:
    rows = [
        {
            "name": identity.name,
            "role": identity.role,
            "public_key": key_text(key),
            "secret_is_here": os.access(directory / f"{identity.name}{SECRET_SUFFIX}", os.R_OK),
        }
        for key, identity in read_allowed(directory).items()
    ]
    if parsed.has("json"):
        print(json.dumps({"schema": 1, "directory": str(directory), "keys": rows}, indent=1))
        return
    for row in rows:
        here = "secret here" if row["secret_is_here"] else "secret elsewhere"
        print(f"{row['name']:<16} {row['role']:<8} {row['public_key']}  {here}")
