"""Jobs of real processes whose connections have keys: joining, revoking in mid-run, and the end of
who decides."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.keys import read_secret
from luwu.commands.main import main as luwu_main
from luwu.join.connection import read_connection
from luwu.join.open import open_nic
from luwu.monitor.watch import Watch
from luwu.nic.reader import StateReader
from luwu.testing.cluster import Cluster
from luwu.transport.curve import Security
from luwu.transport.interface import PeerDown, PeerFailed, PeerUp
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.key_directories import make_keys
from tests.intruders.__main__ import main as send_intruders
from tests.kill import finish, start, wait_for_step
from tests.processes.jobs import Outside

STEPS = 30


@pytest.mark.faults(28)
@pytest.mark.feature("intruders and floods of every message while a job trains")
@pytest.mark.feature("connections with keys")
def test_intruders_are_refused_and_nobody_notices(capfd: pytest.CaptureFixture[str]) -> None:
    """I3, I7. Goal: two of each kind are refused and logged, and the digest is plain torch's."""
    code = send_intruders(["--count", "24", "--steps", "45", "--seed", "5"])
    assert code == 0, capfd.readouterr().out


@dataclass(frozen=True)
class Seen:
    """One run with keys, from its first steps to what it left."""

    directory: Path
    secrets: Sequence[str]
    """Of all keys, in hexadecimal digits."""
    cluster: Cluster
    security: str
    """What `luwu status` says of it."""
    heard: Sequence[object]
    """By a connection whose key was taken back."""
    heard_ns: int
    """From the taking back to the first of it."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A reader is connected while its key is revoked."""
    directory = tmp_path_factory.mktemp("keyed")
    keys = make_keys(tmp_path_factory.mktemp("keys") / "keys")
    secrets = [path.read_text().strip() for path in keys.glob("*.secret")]
    outside = Outside(directory / "run.tmp")
    with start(
        directory, "run", steps=STEPS, restarts=0, outside=outside, transport="tcp",
        more_flags=["--keys", str(keys), "--verbose"],
    ) as cluster:  # fmt: skip
        wait_for_step(cluster, 2)
        security = Watch(cluster.run_directory).document()["security"]
        connection = read_connection(cluster.run_directory.connect_file)
        assert connection is not None
        assert connection.switch is not None
        own = Security(own=read_secret(keys, "reader"))
        with StateReader(
            ZeroMqTransport(security=own), endpoint=connection.switch, job=connection.job
        ) as reader:
            reader.open()  # it may read what a worker's neighbour may read
            assert reader.version >= 2
        with ZeroMqTransport(security=own) as transport:
            transport.dial("switch", connection.switch)
            assert isinstance(transport.receive(10 * 10**9), PeerUp)
            asked_ns = SYSTEM_CLOCK.now_ns()
            assert luwu_main(["keys", "revoke", "reader", "--keys", str(keys)]) == 0
            heard = [transport.receive(10 * 10**9)]
            heard_ns = SYSTEM_CLOCK.now_ns() - asked_ns
            heard.append(transport.receive(10 * 10**9))
        finish(cluster, outside)
    return Seen(directory, secrets, cluster, security, heard, heard_ns)


@pytest.mark.feature("revoking a key during a run")
def test_a_key_is_taken_back_in_mid_run(seen: Seen) -> None:
    """Goal: within seconds its connection ends, and it gets no other; the rest trains on to the
    end, with no step replayed."""
    assert seen.security.startswith("keys: connections are encrypted")
    log = seen.cluster.run_directory.log("launcher").read_text()
    assert f"security: {seen.security}" in log
    down, failed = seen.heard
    assert isinstance(down, PeerDown), down
    assert seen.heard_ns < 5 * 10**9
    assert isinstance(failed, PeerFailed), failed
    assert failed.final
    assert "rejected our key" in str(failed.error)
    events = seen.cluster.run_directory.events("node").read_text()
    assert '"node.abort"' not in events
    assert events.count('"name":"node.step"') == STEPS
    refusals = seen.cluster.run_directory.events("switch").read_text()
    assert re.search(r'"peer\.refused".*its key \w+\.\.\. is not in .*allowed\.json', refusals)


def test_the_end_of_the_handler_ends_the_run(tmp_path: Path) -> None:
    """I6, I7. Goal: exit code 3 with the reason in words, not a switch that lets anybody in.
    Method: a failpoint ends the handler's thread at the second key it is asked about."""
    keys = make_keys(tmp_path / "keys")
    outside = Outside(tmp_path / "run.tmp")
    flags = ["--keys", str(keys), "--workers", "2", "--transport", "tcp", "--durability", "none"]
    environ = {**outside.environ, "LUWU_FAILPOINTS": "zap.request=raise@2"}
    script = ["-m", "tests.light_job", "--steps", "5"]
    with Cluster.run(tmp_path, *script, flags=flags, environ=environ) as cluster:
        assert cluster.wait(60) == 3, cluster.output
        assert "the thread that checks keys has ended" in cluster.output
        assert cluster.wait_until_clean() == []


@pytest.mark.faults(28)
@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"LUWU_KEYS": "keys", "LUWU_KEY_NAME": "worker-7"}, "has no key 'worker-7'"),
        ({}, "is encrypted, and this process has no key of its own"),
    ],
)
def test_who_joins_without_the_right_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], text: str
) -> None:
    """Goal: a worker that has no key, or not the one it names, ends with what to do, and soon."""
    monkeypatch.chdir(tmp_path)
    make_keys(tmp_path / "keys")
    url = f"tcp://{'ab' * 32}@127.0.0.1:1?job=1&world_size=1&chunk_bytes=1048576"
    for name, value in {"LUWU_CONNECT": url, **environ}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=text):
        open_nic(0, 1)


def test_files_of_a_run_are_this_users_alone(tmp_path: Path) -> None:
    """Goal: with the usual umask, nobody else can look into the run directory, the state or the
    directory of the sockets, and no file that switch and node made is open to others."""
    before = os.umask(0o022)
    outside = Outside(tmp_path / "run.tmp")
    try:
        cluster = start(tmp_path, "run", steps=12, restarts=0, outside=outside, workers=1)
    finally:
        os.umask(before)
    with cluster:
        wait_for_step(cluster, 1)
        run, state = cluster.run_directory.path, tmp_path / "run.state"
        sockets = [path for path in Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp").glob(
            f"luwu-run-{cluster.pid}-*")]  # fmt: skip
        assert sockets
        for directory in (run, state, *sockets):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
        ours = [path for each in (state, *sockets) for path in each.rglob("*")]
        ours += [path for name in ("node", "switch") for path in run.glob(f"*/{name}*.json*")]
        ours = [path for path in ours if run / "logs" not in path.parents]
        assert len(ours) > 8, ours
        assert [path for path in ours if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []
        assert stat.S_IMODE((run / "connect.json").stat().st_mode) == 0o600
        finish(cluster, outside)


def test_no_secret_is_in_what_a_run_leaves(seen: Seen) -> None:
    """Goal: not in logs, events, roles, results or what was printed, in text or in bytes."""
    assert len(seen.secrets) == 5
    files = [path for path in seen.directory.rglob("*") if path.is_file()]
    assert any(path.name == "switch.jsonl" for path in files)
    for path in files:
        content = path.read_bytes()
        for secret in seen.secrets:
            assert secret.encode() not in content, path
            assert bytes.fromhex(secret) not in content, path
    shown = seen.cluster.run_directory.events("switch").read_text()
    assert '"key":"worker-0"' in shown, "the log says whose key it was"
