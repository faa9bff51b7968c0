"""Where a transport over ZeroMQ may listen and dial: addresses, host names and paths."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq

from luwu.base.errors import ConfigError, ConnectionFailed
from luwu.transport import endpoints as endpoints_module
from luwu.transport.sockets import LOOPBACK_SEND_BYTES, ZeroMqTiming, prepare_bind
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.transports import OverZeroMq, listening_process
from tests.suites.transport_waits import Make, dialling, meet, up


class TestWhereToListen(OverZeroMq):
    @pytest.mark.feature("tcp off loopback without keys, or at every address")
    def test_a_routable_address_needs_keys_or_insecure(self, make: Make) -> None:
        """Goal: refused before anything is open, with the flags to use, listening and dialling."""
        with pytest.raises(ConfigError, match=r"luwu keys init and give --keys.*--insecure"):
            make().listen("tcp://192.0.2.1:0")
        with pytest.raises(ConfigError, match=r"names no public key.*--keys.*--insecure"):
            make().dial("parent", "tcp://192.0.2.1:5")
        with pytest.raises(ConfigError, match="is not an address of this machine"):
            make(insecure=True).listen("tcp://192.0.2.1:0")

    @pytest.mark.feature("tcp off loopback without keys, or at every address")
    @pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0"])
    def test_every_address_at_once_is_refused(self, make: Make, endpoint: str) -> None:
        """Goal: who listens says where, though nothing is secured and an address is advertised."""
        with pytest.raises(ConfigError, match="means every address of this machine"):
            make(insecure=True).listen(endpoint, advertise="127.0.0.1")

    @pytest.mark.parametrize("advertise", ["127.0.0.1", "tcp://127.0.0.1:0", "localhost"])
    def test_what_is_advertised_can_be_dialled(self, make: Make, advertise: str) -> None:
        """Goal: what is returned is what was advertised, with the port where it has none."""
        listener = make()
        where = listener.listen("tcp://127.0.0.1:0", advertise=advertise)
        assert where.startswith("tcp://" + advertise.removeprefix("tcp://").split(":")[0] + ":")
        meet(listener, dialling(make, where))

    @pytest.mark.parametrize(
        ("advertise", "endpoint"),
        [
            ("node0", "tcp://node0:7"),
            ("node0:9", "tcp://node0:9"),
            ("tcp://node0:9", "tcp://node0:9"),
            ("fe80::1", "tcp://[fe80::1]:7"),
            ("[fe80::1]", "tcp://[fe80::1]:7"),
            ("[fe80::1]:9", "tcp://[fe80::1]:9"),
        ],
    )
    def test_forms_of_advertise(self, advertise: str, endpoint: str) -> None:
        bound = endpoints_module.TcpEndpoint("0.0.0.0", 7)
        assert str(endpoints_module.advertised(advertise, bound)) == endpoint

    def test_a_host_name_is_resolved_first(self, make: Make) -> None:
        """Goal: an unknown host raises at once, dialled or listened on; a known one works."""
        with pytest.raises(ConnectionFailed, match=r"cannot resolve the host 'no-host\.invalid'"):
            make(insecure=True).dial("parent", "tcp://no-host.invalid:5555")
        with pytest.raises(ConfigError, match="cannot resolve the host"):
            make().listen("tcp://no-host.invalid:0")
        where = make().listen("tcp://localhost:0")
        up(dialling(make, where.replace("127.0.0.1", "localhost")))

    @pytest.mark.parametrize(
        ("endpoint", "is_bounded"),
        [
            ("tcp://127.0.0.1:7", True),
            ("tcp://127.8.0.1:7", True),
            ("tcp://[::1]:7", True),
            ("tcp://localhost:7", True),
            ("tcp://192.0.2.1:7", False),
            ("tcp://0.0.0.0:7", False),
            ("tcp://*:7", False),
            ("tcp://node0:7", False),
            ("ipc:///tmp/node", False),
        ],
    )
    def test_the_kernel_may_hold_little_within_a_host(
        self, endpoint: str, is_bounded: bool
    ) -> None:
        """Goal: between hosts the system chooses, for the right size grows with the delay."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.sndbuf = 4711  # of another endpoint before
            prepare_bind(socket, endpoints_module.parse(endpoint), ZeroMqTiming(), None)
            assert socket.sndbuf == (LOOPBACK_SEND_BYTES if is_bounded else -1)

    @pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:0", "tcp://0.0.0.0:5", "tcp://*:5"])
    def test_what_cannot_be_dialled_is_refused(self, make: Make, endpoint: str) -> None:
        with pytest.raises(ConfigError, match="cannot be dialled"):
            make().dial("parent", endpoint)

    def test_an_auto_path_is_short_private_and_removed(self, make: Make) -> None:
        """T6. Goal: a directory for this user alone, and gone after close."""
        transport = make()
        path = Path(transport.listen("ipc://auto").removeprefix("ipc://"))
        assert len(os.fsencode(path)) < 107
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        transport.close()
        assert not path.parent.exists()

    def test_the_directory_of_a_killed_process_is_swept(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T6. Method: kill a process that listens at ipc://auto; the next one to do so cleans up,
        and leaves alone what a live process has."""
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        live = Path(make().listen("ipc://auto").removeprefix("ipc://"))
        process, where = listening_process(ZeroMqTransport, "ipc://auto")
        process.kill()
        process.communicate()
        dead = Path(where.removeprefix("ipc://"))
        assert dead.exists()

        new = Path(make().listen("ipc://auto").removeprefix("ipc://"))

        assert set(tmp_path.iterdir()) == {live.parent, new.parent}
