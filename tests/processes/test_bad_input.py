"""What a user can get wrong, typed into real commands (`pytest -k bad_input`).

What is refused before a process starts is typed once, and given to the command in this process
otherwise. Each is refused with the exit code of its kind, within seconds, by a message on standard
error that names what was found, what was expected and what to do next; nothing is left behind but,
where processes were started, the run directory with their logs.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from luwu.base.limits import PROTOCOL_VERSION
from luwu.commands.main import main as luwu_main
from tests.processes.commands import Command, Terminal, terminal, write_light

SECONDS_MAX = 90.0
"""For one command on a busy machine; each took 0.1 to 5 s on an idle one with 2 processors."""

STATE = "state"
RUNS = "luwu-runs"
URL = "tcp://127.0.0.1:9?job=1&world_size=2&chunk_bytes=16384"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    with terminal(tmp_path) as opened:
        yield opened
        assert opened.leftovers() == []


@dataclass(frozen=True)
class Corrected:
    """A command that was refused, and the same with what its message named."""

    message: str
    directory: Path

    @property
    def state(self) -> Path:
        """After one step of one worker."""
        return self.directory / STATE


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Corrected:
    """A budget that is too small, and then the least that will do."""
    directory = tmp_path_factory.mktemp("corrected")
    with terminal(directory) as shell:
        script = write_light(directory / "tiny.py")
        flags = ["run", "--workers", "1", "--state", STATE, "--memory-budget"]
        done = shell.run(*flags, "64KiB", str(script))
        message = refused(
            shell, done,
            "memory_budget: 64.00 KiB is too small for chunks of 16.00 KiB and 1 worker",
            leaves=(RUNS, "tiny.py"),
        )  # fmt: skip
        enough = re.search(r"give at least (\w+)", message)
        assert enough is not None, message
        done = shell.run(*flags, enough[1], str(script))
        assert done.process.returncode == 0, done.err
    return Corrected(message, directory)


@pytest.fixture
def used_state(corrected: Corrected) -> Path:
    """The state of a job of one worker after one step."""
    return corrected.state


class Typed(Protocol):
    """Gives a command to `luwu` in this process."""

    def __call__(
        self, *arguments: str, said: Sequence[str], leaves: tuple[str, ...] = ()
    ) -> None: ...


@pytest.fixture
def typed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Check how a command is refused before anything starts."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LUWU_")]:
        monkeypatch.delenv(name)

    def typed(*arguments: str, said: Sequence[str], leaves: tuple[str, ...] = ()) -> None:
        code = luwu_main(arguments)
        message = capsys.readouterr().err
        assert code == 2, message
        check_message(message, said, tmp_path, leaves, code)

    return typed


def refused(
    shell: Terminal, command: Command, *said: str, code: int = 2, leaves: tuple[str, ...] = ()
) -> str:
    """Check how a command was refused; its message. `said` are patterns, in any order."""
    assert command.process.returncode == code, (str(command), command.err)
    assert command.seconds < SECONDS_MAX
    assert shell.leftovers() == []
    check_message(command.err, said, shell.directory, leaves, code)
    return command.err


def check_message(
    message: str, said: Sequence[str], directory: Path, leaves: tuple[str, ...], code: int
) -> None:
    """Check what was said, and what stands in the directory."""
    for pattern in said:
        assert re.search(pattern, message), f"{pattern!r} is not in:\n{message}"
    assert message.splitlines()[0].startswith(("luwu", "run"))
    assert code == 4 or "Traceback" not in message or "rejected" in message
    made = {path.name for path in directory.iterdir()} - set(leaves)
    assert not made, f"left: {made}"


# ---------------------------------------------------------------------- before anything starts

TYPED = [
    pytest.param(
        ["compare", "--arms", "luwu,fdsp"],
        ["--arms: 'fdsp' is not one of luwu, luwu_ram, fsdp, .*, zero-infinity; did you mean fsdp"],
        id="unknown-arm",
    ),
    pytest.param(
        ["compare", "--arms", "luwu,luwu_ram", "--optimizer-nodes", "2"],
        ["optimizer_nodes: 2 asked for, but luwu_ram keeps its state in the memory of one node"],
        id="several-nodes-in-ram",
    ),
    pytest.param(
        ["compare", "--memory-bugdet", "1GiB"],
        ["luwu compare has no flag --memory-bugdet; did you mean --memory-budget"],
        id="unknown-flag",
    ),
    pytest.param(
        ["run", "--accumulate", "4", "train.py"],
        ["luwu run has no flag --accumulate"],
        id="flag-not-built",
    ),
    pytest.param(
        ["compare", "--workers", "0"],
        ["--workers: '0' is not a whole number from 1 to 1024"],
        id="zero-workers",
    ),
    pytest.param(
        ["run", "--workers", "0", "train.py"],
        ["--workers: '0' is not a whole number from 1 to 1024"],
        id="zero-workers-run",
    ),
    pytest.param(
        ["compare", "--data", "nothing.txt"],
        [r"--data nothing\.txt does not exist; name a text file or a \.bin"],
        id="data-missing",
    ),
    pytest.param(
        ["compare", "--data", "."],
        [r"--data \. is a directory; name a text file or a \.bin"],
        id="data-directory",
    ),
    pytest.param(
        ["run", "--worker-hosts", "2", "-m", "workers.train"],
        ["worker_hosts: several hosts share the workers of one job; start luwu up on one"],
        id="hosts-without-a-job",
    ),
    pytest.param(
        ["run", "--worker-hosts", "2", "--join", "nowhere", "-m", "workers.train"],
        ["the torchruns of the hosts need a place to meet: add --rendezvous HOST:29400"],
        id="hosts-that-meet-nowhere",
    ),
    pytest.param(
        ["run", "--rendezvous", "10.0.0.5", "-m", "workers.train"],
        [r"--rendezvous: '10\.0\.0\.5' is not HOST:PORT"],
        id="rendezvous-without-port",
    ),
    pytest.param(
        ["run", "--ranks", "0", "-m", "workers.train"],
        ["ranks: this command starts all workers of its job; .* start luwu up on one host"],
        id="ranks-without-a-job",
    ),
    pytest.param(
        ["run", "--join", URL, "--ranks", "0", "-m", "workers.train"],
        ["ranks: with on_worker_loss stop, all workers of all hosts restart together"],
        id="ranks-of-a-job-that-ends-with-a-worker",
    ),
    pytest.param(
        ["run", "--join", f"{URL}&on_worker_loss=drop", "--ranks", "1-2", "-m", "workers.train"],
        ["ranks: 1-2 asked for, but the job at tcp://127.0.0.1:9 has ranks 0 to 1"],
        id="ranks-beyond-the-job",
    ),
    pytest.param(
        ["run", "--join", "nowhere", "--on-worker-loss", "drop", "-m", "workers.train"],
        [r"on_worker_loss \(flag --on-worker-loss\) is a setting of the switch and the node"],
        id="policy-of-a-job-that-runs",
    ),
    pytest.param(
        ["run", "--join", "nowhere", "--replicas", "2", "-m", "workers.train"],
        [r"replicas \(flag --replicas\) is a setting of the switch and the node"],
        id="replicas-of-a-job-that-runs",
    ),
    pytest.param(
        ["compare", "--arms", "fsdp,ddp", "--state-dtype", "int8"],
        [r"state_dtype \(flag --state-dtype\): only arms with a switch heed it; add luwu"],
        id="state-that-no-arm-stores",
    ),
    pytest.param(
        ["compare", "--arms", "fsdp", "--memory-budget", "1GiB"],
        [r"memory_budget \(flag --memory-budget\): only arms with a switch heed it"],
        id="budget-of-no-node",
    ),
    pytest.param(
        [
            "run", "--join", f"{URL}&on_worker_loss=drop", "--worker-hosts", "2",
            "--rendezvous", "127.0.0.1:29400", "-m", "workers.train",
        ],
        ["with --rendezvous another program restarts them all; give each host its --ranks instead"],
        id="torchrun-of-a-job-that-drops-workers",
    ),
    pytest.param(
        ["up", "--role", "switch", "--join", f"{URL}&on_worker_loss=drop"],
        ["on_worker_loss: stop here, but tcp://127.0.0.1:9 was started with drop"],
        id="policies-that-differ",
    ),
    pytest.param(
        ["up", "--workers-max", "3", "--on-worker-loss", "wait"],
        ["workers_max: on_worker_loss is wait, with which the job waits for all workers"],
        id="workers-that-are-waited-for",
    ),
    pytest.param(
        ["up", "--role", "switch", "--join", "nowhere", "--job", "3"],
        ["job: it is that of the node; give --job to luwu up --role node"],
        id="job-at-the-switch",
    ),
    pytest.param(
        ["run", "--drop-after", "3s", "-m", "workers.train"],
        ["drop_after: on_worker_loss is stop, .* give --on-worker-loss drop too"],
        id="drop-after-of-workers-that-are-not-dropped",
    ),
    pytest.param(
        ["run", "--join", URL, "--grace", "5s", "-m", "workers.train"],
        ["grace .* is a setting of the switch and the node; pass it to luwu up"],
        id="grace-of-a-job-that-runs",
    ),
    pytest.param(
        ["up", "--fill-rate", "1GB/s"],
        ["fill_rate: the job cannot go on without an optimizer node.* --replicas 2 too"],
        id="fill-rate-without-replicas",
    ),
    pytest.param(
        ["run", "nothing.py"],
        [r"there is no script nothing\.py; name a Python file, or -m MODULE"],
        id="script-missing",
    ),
    pytest.param(
        ["compare", "--memory-budget", "4"],
        [r"--memory-budget: '4' has no unit; .*4B|4 ?KiB|4MiB"],
        id="size-without-unit",
    ),
    pytest.param(
        ["up", "--bind", "tcp://0.0.0.0:0"],
        [r"0\.0\.0\.0:0 means every address of this machine"],
        id="every-address",
    ),
    pytest.param(
        ["up", "--bind", "tcp://192.0.2.1:0"],
        [r"tcp://192\.0\.2\.1:0 is reached over a network.*luwu keys init.*--keys.*--insecure"],
        id="off-loopback",
    ),
    pytest.param(
        ["up", "--bind", "tcp://127.0.0.1:0", "--keys", "no-such"],
        [r"keys: cannot open .*no-such: No such file.*luwu keys init"],
        id="no-keys",
    ),
    pytest.param(
        ["up", "--bind", "tcp://127.0.0.1:0", "--key-name", "x"],
        [r"key_name: switch and node each have their own key"],
        id="key-of-both",
    ),
]  # fmt: skip


def test_bad_input_typed_into_a_terminal(shell: Terminal) -> None:
    arguments, said = TYPED[0].values
    refused(shell, shell.run(*arguments), *said)


@pytest.mark.parametrize(("arguments", "said"), TYPED)
def test_bad_input_typed(typed_here: Typed, arguments: list[str], said: list[str]) -> None:
    leaves = (RUNS,) if arguments[0] == "up" or URL in str(arguments) else ()
    typed_here(*arguments, said=said, leaves=leaves)


def test_bad_input_unknown_key_in_a_file(typed_here: Typed, tmp_path: Path) -> None:
    (tmp_path / "luwu.toml").write_text("worker = 2\n")
    said = r"luwu\.toml: unknown key 'worker'; did you mean workers"
    typed_here("compare", "--config", "luwu.toml", said=[said], leaves=("luwu.toml",))


def test_bad_input_unknown_key_in_the_environment(
    typed_here: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUWU_WROKERS", "2")
    said = "LUWU_WROKERS.*unset it, or fix its name; did you mean LUWU_WORKERS"
    typed_here("compare", said=[said])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("empty.txt", b"", r"empty\.txt is empty; name a file with text", id="empty"),
        pytest.param(
            "odd.bin", b"abc", r"odd\.bin has 3 bytes, an odd number.*uint16", id="odd-bin"
        ),
    ],
)
def test_bad_input_data(
    typed_here: Typed, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    typed_here("compare", "--data", name, said=[said], leaves=(name,))


# ---------------------------------------------------------------------- found by switch and node


def test_bad_input_budget_too_small(corrected: Corrected) -> None:
    """Goal: a budget that cannot work is refused with one that does: the same command with it
    trains to the end."""
    assert "too small" in corrected.message
    assert pages_digest(corrected.state)


@pytest.mark.slow
def test_bad_input_budget_too_small_for_ram(shell: Terminal) -> None:
    """Goal: the same where the state has no directory, so all of it must fit."""
    script = write_light(shell.directory / "tiny.py", width="65536")
    flags = ["run", "--workers", "1", "--durability", "none", "--memory-budget"]
    done = shell.run(*flags, "4MiB", str(script))
    message = refused(
        shell, done, "two sides of the state take .* of RAM.*or a directory with --state",
        leaves=(RUNS, "tiny.py"),
    )  # fmt: skip
    enough = re.search(r"give (\d+KiB)", message)
    assert enough is not None, message
    done = shell.run(*flags, enough[1], str(script))
    assert done.process.returncode == 0, done.err


def test_bad_input_used_state_without_resume(shell: Terminal, used_state: Path) -> None:
    shutil.copytree(used_state, shell.directory / STATE)
    before = pages_digest(shell.directory / STATE)
    done = shell.run("up", "--workers", "1", "--state", STATE)
    refused(
        shell, done, "holds the state of a job after 1 decided step; continue it with --resume",
        "or name another directory with --state", leaves=(RUNS, STATE),
    )  # fmt: skip
    assert pages_digest(shell.directory / STATE) == before


def test_bad_input_state_of_another_model(shell: Terminal, used_state: Path) -> None:
    shutil.copytree(used_state, shell.directory / STATE)
    before = pages_digest(shell.directory / STATE)
    script = write_light(shell.directory / "tiny.py", width="32", steps=2)
    done = shell.run("run", "--workers", "1", "--state", STATE, "--resume", str(script))
    refused(
        shell, done, "the state is that of another job", r"\[8, 32\].*expected.*\[8, 16\]",
        "give the right --state, or a new directory", leaves=(RUNS, STATE, "tiny.py"),
    )  # fmt: skip
    assert pages_digest(shell.directory / STATE) == before


def test_bad_input_second_node_on_one_directory(shell: Terminal, used_state: Path) -> None:
    shutil.copytree(used_state, shell.directory / STATE)
    flags = ["up", "--workers", "1", "--resume", "--state", STATE]
    first = shell.start(*flags, "--durability", "process")
    first.wait_for("^join ")
    assert f"state {STATE} (survives the end of any process)" in first.err
    second = shell.start(*flags)
    assert second.wait() == 2, second.err
    assert re.search(
        r"state is open in process \d+.*: a second node on one directory. Stop the other, or give",
        second.err,
    ), second.err
    assert first.interrupt() == 0, first.err


def test_bad_input_port_in_use(shell: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = shell.run("up", "--bind", endpoint)
        refused(
            shell, done, f"{endpoint} is in use by another process; stop it, choose another port",
            leaves=(RUNS,),
        )  # fmt: skip


# ---------------------------------------------------------------------- found when workers join

ANOTHER_PROTOCOL = "from luwu.base import limits\nlimits.PROTOCOL_VERSION += 1\n"


def test_bad_input_peer_of_another_protocol_version(shell: Terminal) -> None:
    """Goal: a worker of another version is refused by name, and one of this version still joins."""
    other = write_light(shell.directory / "other.py", first=ANOTHER_PROTOCOL)
    script = write_light(shell.directory / "tiny.py")
    serving = shell.start("up", "--workers", "1", "--state", STATE, "--bind", "tcp://127.0.0.1:0")
    url = serving.wait_for("^or      luwu run --join '(.*)' SCRIPT")[1]
    done = shell.run("run", "--join", url, str(other))
    assert done.process.returncode == 2, done.err
    versions = f"you use protocol version {PROTOCOL_VERSION + 1}, this side {PROTOCOL_VERSION}"
    assert re.search(f"{versions}; install the same luwu", done.err)
    assert done.seconds < SECONDS_MAX

    done = shell.run("run", "--join", url, str(script))
    assert done.process.returncode == 0, done.err
    assert serving.wait() == 0, serving.err


def test_bad_input_connection_file_of_another_version(shell: Terminal) -> None:
    file = shell.directory / "connect.json"
    file.write_text('{"schema": 1, "protocol": 99, "job": 1}')
    script = write_light(shell.directory / "tiny.py")
    done = shell.run("run", "--join", str(file), str(script))
    refused(
        shell, done,
        rf"connect\.json: protocol is 99, expected {PROTOCOL_VERSION}; .* another version of luwu",
        "install the same luwu", leaves=(RUNS, "connect.json", "tiny.py"),
    )  # fmt: skip


def test_bad_input_two_models_on_two_ranks(shell: Terminal) -> None:
    script = write_light(shell.directory / "tiny.py", width="16 + 16 * RANK")
    done = shell.run("run", "--workers", "2", "--state", STATE, str(script))
    refused(
        shell, done, "ranks 0, 1 do not train the same", r"\[8, (16|32)\].*expected.*\[8, (1|3)",
        "run the same script on the same data on every rank", leaves=(RUNS, "tiny.py"),
    )  # fmt: skip


# ---------------------------------------------------------------------- the other exit codes


def test_bad_input_nobody_serves(shell: Terminal) -> None:
    """Goal: what is waited for is said, and the wait ends with code 3."""
    script = write_light(shell.directory / "tiny.py")
    done = shell.run("run", "--join", "no/connect.json", "--connect-timeout", "3s", str(script))
    refused(
        shell, done, r"waiting for connect\.json, \d+ s of 3 s",
        r"no/connect\.json did not appear within \d+ s; start luwu up", code=3,
        leaves=(RUNS, "tiny.py"),
    )  # fmt: skip


def test_bad_input_script_that_fails(shell: Terminal) -> None:
    """Goal: a worker's own error ends the run with code 4 and its traceback."""
    script = shell.directory / "wrong.py"
    script.write_text("raise ValueError('boom')\n")
    done = shell.run("run", "--workers", "1", str(script))
    refused(
        shell, done, r"worker 0 failed with ValueError \(exit code 1\); log .*worker-0\.log",
        r"wrong\.py\", line 1", "ValueError: boom", code=4, leaves=(RUNS, "wrong.py"),
    )  # fmt: skip


def test_bad_input_damaged_state(shell: Terminal, used_state: Path) -> None:
    """Goal: a state that lost a part ends with code 5, and says which part."""
    shutil.copytree(used_state, shell.directory / STATE)
    (shell.directory / STATE / "side1.dat").write_bytes(b"")
    done = shell.run("up", "--workers", "1", "--resume", "--state", STATE)
    refused(
        shell, done, r"side1\.dat has 0 bytes, expected \d+\. Restore", code=5,
        leaves=(RUNS, STATE),
    )  # fmt: skip


def pages_digest(state: Path) -> str:
    """Hash of what a refused command must not change; an opening counts up in the other files."""
    names = ("CONFIG", "side0.dat", "side1.dat")
    return hashlib.sha256(b"".join((state / name).read_bytes() for name in names)).hexdigest()
