"""What a user can get wrong, typed into real commands (`pytest -k bad_input`).

What is refused before a process starts is given to the command in this process, and once typed into
a terminal. Each is refused with the exit code of its kind, within seconds, by a message on standard
error that names what was found, what was expected and what to do next; nothing is left behind but,
where processes were started, the run directory with their logs. What a join finds:
`tests/jobs/test_local_refusals.py`.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from luwu.commands.main import main as luwu_main
from tests.processes.commands import Command, Terminal, write_light

SECONDS_MAX = 90.0
"""For one command on a busy machine; each took 0.1 to 5 s on an idle one with 2 processors."""

STATE = "state"
RUNS = "luwu-runs"
URL = "tcp://127.0.0.1:9?job=1&world_size=2&chunk_bytes=16384"


def refused(
    shell: Terminal, command: Command, *said: str, code: int = 2, leaves: tuple[str, ...] = ()
) -> str:
    """Check how a command was refused; its message. `said` are patterns, in any order."""
    assert command.process.returncode == code, (str(command), command.err)
    assert command.seconds < SECONDS_MAX
    assert shell.leftovers() == []
    check_message(command.err, said, shell.directory, leaves)
    return command.err


def check_message(
    message: str, said: Sequence[str], directory: Path, leaves: tuple[str, ...]
) -> None:
    """Check what was said, and what stands in the directory."""
    for pattern in said:
        assert re.search(pattern, message), f"{pattern!r} is not in:\n{message}"
    assert message.splitlines()[0].startswith(("luwu", "run"))
    assert "Traceback" not in message
    made = {path.name for path in directory.iterdir()} - set(leaves)
    assert not made, f"left: {made}"


# ---------------------------------------------------------------------- before anything starts

TYPED = {
    "compare --arms luwu,fdsp": (
        "--arms: 'fdsp' is not one of luwu, luwu_ram, fsdp, .*, single; did you mean fsdp"
    ),
    "compare --arms luwu,luwu_ram --optimizer-nodes 2": (
        "optimizer_nodes: 2 asked for, but luwu_ram keeps its state in the memory of one node"
    ),
    "compare --data nothing.txt": (
        r"--data nothing\.txt does not exist; name a text file or a \.bin"
    ),
    "run --ranks 0 -m workers.train": (
        "ranks: this command starts all workers of its job; .* start luwu up on one host"
    ),
    f"run --join {URL} --ranks 1-2 -m workers.train": (
        "ranks: 1-2 asked for, but the job at tcp://127.0.0.1:9 has ranks 0 to 1"
    ),
    f"run --join {URL}&hosts=2 -m workers.train": (
        "ranks: a host of this job has 0 or 1, not 0-1; give its --ranks to luwu run"
    ),
    f"run --join {URL} --switch-memory-budget 1GiB -m workers.train": (
        "switch_memory_budget: the job at tcp://127.0.0.1:9 has no switch on this host"
    ),
    f"run --join {URL}&hosts=3 --ranks 0 -m workers.train": "hosts is 3, not a whole number 1 to 2",
    "run --workers 4 --hosts 2 -m workers.train": (
        "hosts: luwu run starts the workers of this host; give --hosts to luwu up"
    ),
    "run --engine ray --workers 3 --hosts 2 -m workers.train": (
        "hosts: 2 hosts cannot share 3 workers evenly"
    ),
    "up --workers 4 --hosts 2": "hosts: the switches of other hosts .* give --bind tcp://ADDRESS",
    "up --hosts 2 --bind tcp://127.0.0.1:0 --no-switch": (
        "no_switch: with --hosts 2 there is a switch on each host"
    ),
    f"up --role switch --name host-0 --join {URL}&hosts=2 --bind shm:///tmp/w": (
        "bind: shm:///tmp/w is none of ours; leave --bind out"
    ),
    f"up --role switch --name switch --join {URL}&hosts=2": (
        "name: switch is above the switches of hosts; leave --name out"
    ),
    "up --role node --hosts 2 --tree tree.toml": "tree: with --hosts 2 there is a switch on each",
    "run --join nowhere --on-worker-loss drop -m workers.train": (
        r"on_worker_loss \(flag --on-worker-loss\) is a setting of the switch and the node"
    ),
    "run --join nowhere --replicas 2 -m workers.train": (
        r"replicas \(flag --replicas\) is a setting of the switch and the node"
    ),
    "compare --arms fsdp,ddp --state-dtype int8": (
        r"state_dtype \(flag --state-dtype\): only arms with a switch heed it; add luwu"
    ),
    "compare --arms fsdp --memory-budget 1GiB": (
        r"memory_budget \(flag --memory-budget\): only arms with a switch heed it"
    ),
    f"up --role switch --join {URL}&on_worker_loss=drop": (
        "on_worker_loss: stop here, but tcp://127.0.0.1:9 was started with drop"
    ),
    "up --workers-max 3 --on-worker-loss wait": (
        "workers_max: on_worker_loss is wait, with which the job waits for all workers"
    ),
    "up --role switch --join nowhere --job 3": (
        "job: it is that of the node; give --job to luwu up --role node"
    ),
    "run --drop-after 3s -m workers.train": (
        "drop_after: on_worker_loss is stop, .* give --on-worker-loss drop too"
    ),
    f"run --join {URL} --grace 5s -m workers.train": (
        "grace .* is a setting of the switch and the node; pass it to luwu up"
    ),
    "up --fill-rate 1GB/s": (
        "fill_rate: the job cannot go on without an optimizer node.* --replicas 2 too"
    ),
    "run nothing.py": r"there is no script nothing\.py; name a Python file, or -m MODULE",
    "up --bind tcp://0.0.0.0:0": r"0\.0\.0\.0:0 means every address of this machine",
    "up --bind tcp://192.0.2.1:0": (
        r"tcp://192\.0\.2\.1:0 is reached over a network.*luwu keys init.*--keys.*--insecure"
    ),
    "up --bind tcp://127.0.0.1:0 --keys no-such": (
        r"keys: cannot open .*no-such: No such file.*luwu keys init"
    ),
    "up --bind tcp://127.0.0.1:0 --key-name x": (
        r"key_name: switch and node each have their own key"
    ),
    "compare --slots 0 --fidelity protocol": "--slots: '0' is not a whole number of at least",
    "compare --fidelity exact": "--fidelity: 'exact' is not one of functional, protocol",
    "compare --slots 4 --arms luwu": "slots: 4 asked for, .*; give --fidelity protocol too",
    "up --slots 4": "slots: 4 asked for, but with functional fidelity .* leave --slots out",
    "up --role node --fidelity protocol": (
        "fidelity: it is that of the switch; give --fidelity to luwu up --role switch"
    ),
    "up --role node --key-name x": (
        "key_name: without --keys no connection has a key; give --keys DIR too, or leave"
    ),
    "run --key-name x -m workers.train": (
        "key_name: without --keys no connection has a key; give --keys DIR too, or leave"
    ),
    "compare --arms luwu --layers 2 --width 64 --memory-budget 2MiB --switch-memory-budget 1KiB": (
        r"switch_memory_budget: 1.00 KiB is too small .*; give at least \d+KiB"
    ),
    "compare --arms luwu --no-switch --switch-memory-budget 4MiB": (
        "with --no-switch the node adds what workers push, .*; leave one of them out"
    ),
    "up --role node --switch-memory-budget 4MiB": (
        "it is that of the switch; give --switch-memory-budget to luwu up --role switch"
    ),
    "estimate --switch-memory-budget 4 train.py": "--switch-memory-budget: '4' has no unit",
    "up --number 1": "number: it says which optimizer node this is; give --role node",
    f"up --role switch --number 1 --join {URL}": "number: it says which optimizer node this is",
    "up --role node --number 1": "node 1 needs the address of node 0: add --join",
    "up --role node --number 64": "--number: '64' is not a whole number from 0 to",
    f"up --role node --join {URL}": "join: only luwu up --role switch, or --role node",
    f"up --role node --number 1 --join {URL} --job 3": (
        "job: a node learns it from --join; give --job to the first node alone"
    ),
    f"up --role node --number 0 --join {URL} --job 3": "job: a node learns it",
    f"up --role node --number 1 --join {URL}": (
        "joined names 1 of 1 optimizer nodes; the next to start is the switch"
    ),
    f"up --role node --number 2 --join {URL}&optimizer_nodes=3": (
        "joined names 1 of 3 optimizer nodes; the next to start is node 1, this is node 2"
    ),
    f"up --role node --number 1 --optimizer-nodes 4 --join {URL}&optimizer_nodes=3": (
        "optimizer_nodes: 4 asked for, but node 0 at tcp://127.0.0.1:9 was started with 3"
    ),
    f"up --role switch --join {URL}&optimizer_nodes=2": (
        "join: it names 1 of 2 optimizer nodes; give what the last of them, .*--number 1"
    ),
    f"up --role switch --optimizer-nodes 2 --join {URL}": (
        "optimizer_nodes: it is that of the node; give --optimizer-nodes to luwu up"
    ),
    "up --role node --drop-node-after 3s": (
        "drop_node_after: it is that of the switch; give --drop-node-after to luwu up --role"
    ),
    f"up --role switch --join {URL} --state here": (
        "state: it is that of the node; give --state to luwu up --role node"
    ),
    f"up --role switch --join {URL}&optimizer_nodes=2&more_nodes=nowhere": (
        "more_nodes is 'nowhere', no tcp://"
    ),
}


def test_bad_input_typed_into_a_terminal(shell: Terminal) -> None:
    line, said = next(iter(TYPED.items()))
    refused(shell, shell.run(*line.split()), said)


@pytest.mark.feature("a flag without effect")
@pytest.mark.parametrize(("line", "said"), TYPED.items())
def test_bad_input_typed(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """How a command is refused before anything starts."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LUWU_")]:
        monkeypatch.delenv(name)
    code = luwu_main(line.split())
    message = capsys.readouterr().err
    assert code == 2, message
    check_message(
        message, [said], tmp_path, (RUNS,) if line.startswith("up") or URL in line else ()
    )


# ---------------------------------------------------------------------- found when processes run


def test_bad_input_budget_too_small(shell: Terminal) -> None:
    """Goal: a budget that cannot work is refused with one that does: the same command with it
    trains to the end."""
    script = write_light(shell.directory / "light.py")
    flags = ["run", "--workers", "1", "--state", STATE, "--memory-budget"]
    done = shell.run(*flags, "64KiB", str(script))
    message = refused(
        shell, done, "memory_budget: 64.00 KiB is too small for chunks of 16.00 KiB and 1 worker",
        leaves=(RUNS, "light.py"),
    )  # fmt: skip
    enough = re.search(r"give at least (\w+)", message)
    assert enough is not None, message
    done = shell.succeed(*flags, enough[1], str(script))


def test_bad_input_port_in_use(shell: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = shell.run("up", "--bind", endpoint)
        refused(
            shell, done, f"{endpoint} is in use by another process; stop it, choose another port",
            leaves=(RUNS,),
        )  # fmt: skip


def test_bad_input_nobody_serves(shell: Terminal) -> None:
    """Goal: a command says what it waits for, and gives up with code 3: for a file, and for the
    switch above that of its host."""
    script = write_light(shell.directory / "light.py")
    join = f"{URL}&hosts=2&connect_timeout_s=2"
    said = r"the switch above was not reached within \d+ s: .*127\.0\.0\.1:9"
    done = shell.run("run", "--join", join, "--ranks", "0", str(script))
    refused(shell, done, said, code=3, leaves=(RUNS, "light.py"))
    environ = {"LUWU_CONNECT": join, **dict.fromkeys(("RANK", "LOCAL_RANK"), "0")}
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    done = shell.start_program([sys.executable], [str(script)], {**environ, **sizes})
    assert done.wait() == 1
    assert re.search(said, done.err)
    done = shell.run("run", "--join", "no/connect.json", "--connect-timeout", "3s", str(script))
    refused(
        shell, done, r"waiting for connect\.json, \d+ s of 3 s",
        r"no/connect\.json did not appear within \d+ s; start luwu up", code=3,
        leaves=(RUNS, "light.py"),
    )  # fmt: skip
