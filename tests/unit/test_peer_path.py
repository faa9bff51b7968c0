"""`luwu doctor --peer`: our own path between two hosts, here over loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from luwu.base.errors import ConfigError, ConnectionFailed, RemoteProtocolError
from luwu.commands import doctor
from luwu.commands.main import main
from luwu.measure.peer_path import PathRate, PathServer, best_streams, measure_path
from luwu.transport.interface import Delivery
from luwu.transport.zeromq import ZeroMqTransport


@contextmanager
def served() -> Iterator[str]:
    """A `PathServer` in a thread; its endpoint."""
    stopping = threading.Event()
    with PathServer("tcp://127.0.0.1:0") as server:
        thread = threading.Thread(target=server.serve, args=(stopping.is_set, lambda text: None))
        thread.start()
        try:
            yield server.endpoint
        finally:
            stopping.set()
            thread.join()


def rate(streams: int, up: float, down: float) -> PathRate:
    return PathRate(
        streams=streams, up_bytes_per_s=up, down_bytes_per_s=down, spread_ratio=0.0,
        round_trip_s=1e-4,
    )  # fmt: skip


def test_a_path_is_measured_in_both_directions_for_each_number_of_connections() -> None:
    """Goal: every number asked for has rates, over real connections. Method: loopback."""
    with served() as endpoint:
        rates = measure_path(endpoint, streams=[2, 1], seconds=0.02, rounds=2)
    assert [each.streams for each in rates] == [2, 1]
    for each in rates:
        assert min(each.up_bytes_per_s, each.down_bytes_per_s, each.round_trip_s) > 0
        assert each.both_bytes_per_s == min(each.up_bytes_per_s, each.down_bytes_per_s)


def test_the_fewest_connections_that_are_as_good_as_the_best_are_chosen() -> None:
    """Goal: more connections cost threads, so they must gain something in the slower direction."""
    assert best_streams([rate(1, 10, 10), rate(2, 10.4, 10.4), rate(4, 10, 10)]) == 1
    assert best_streams([rate(1, 10, 99), rate(2, 20, 20), rate(4, 20.5, 20.5)]) == 2
    assert best_streams([rate(8, 20, 20), rate(1, 5, 20)]) == 8


def test_who_answers_something_else_is_named() -> None:
    """I6. Goal: a port where something else of ours listens is not taken for a path."""
    stopping = threading.Event()
    with ZeroMqTransport() as other:
        endpoint = other.listen("tcp://127.0.0.1:0")

        def answer() -> None:
            while not stopping.is_set():
                item = other.receive(50_000_000)
                if isinstance(item, Delivery):
                    item.release()
                    other.send(item.peer, b"something else")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(RemoteProtocolError, match="said b'something else'"):
                measure_path(endpoint, streams=[1], seconds=0.02)
        finally:
            stopping.set()
            thread.join()


def test_nobody_there_and_nobody_left_are_errors_that_say_what_to_do() -> None:
    """I6. Method: a port that nobody listens at, and a listener that never answers."""
    with ZeroMqTransport() as silent:
        endpoint = silent.listen("tcp://127.0.0.1:0")
        with pytest.raises(ConnectionFailed, match=r"did not answer|said nothing for 0 s"):
            measure_path(endpoint, streams=[1], seconds=0.02, timeout_s=0.3)
    with pytest.raises(ConnectionFailed, match="luwu doctor --listen HOST there"):
        measure_path(endpoint, streams=[1], seconds=0.02, timeout_s=0.3)


@pytest.mark.parametrize(
    ("where", "endpoint"),
    [
        ("node-7", "tcp://node-7:29170"),
        ("node-7:80", "tcp://node-7:80"),
        ("10.0.0.5", "tcp://10.0.0.5:29170"),
        ("[::1]:80", "tcp://[::1]:80"),
        ("[::1]", "tcp://[::1]:29170"),
        ("tcp://h:1", "tcp://h:1"),
    ],
)
def test_a_host_may_be_written_with_or_without_a_port(where: str, endpoint: str) -> None:
    assert doctor._endpoint(where) == endpoint


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--streams", "2"], "--streams belongs to --peer"),
        (["--insecure"], "--insecure belongs to --listen"),
        (["--peer", "h", "--disk", "."], "different jobs"),
        (["--peer", "h", "--streams", "1,1"], "names a number twice"),
        (["--peer", "h", "--streams", "9"], "from 1 to 8"),
        (["--listen", "192.0.2.1:0"], "pass --insecure"),
        (["--listen", "0.0.0.0:0"], "means every address of this machine"),
    ],
)
def test_bad_network_questions_to_the_doctor_are_refused(
    tokens: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *tokens]) == ConfigError.exit_code
    assert said in capsys.readouterr().err


def test_the_doctor_says_what_stripes_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as endpoint:
        assert main(["doctor", "--peer", endpoint, "--streams", "1", "--seconds", "20ms"]) == 0
    assert "use --stripes 1" in capsys.readouterr().out
