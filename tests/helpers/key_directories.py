"""Directories of keys for tests, and transports that have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.keys import (
    ROLES,
    Identity,
    make_directory,
    read_allowed,
    write_allowed,
    write_secret,
)
from luwu.transport.curve import Security, new_key_pair, open_security
from luwu.transport.interface import Transport
from luwu.transport.zeromq import ZeroMqTransport
from tests.helpers.transports import ListeningAtTcp, WithRawSockets, maker
from tests.suites.transport_waits import Make

NAMES = {
    "node": "node",
    "switch": "switch",
    "worker-0": "worker",
    "worker-1": "worker",
    "reader": "reader",
}


def make_keys(directory: Path, names: dict[str, str] | None = None) -> Path:
    """A directory with a key for each name, of the role beside it."""
    make_directory(directory)
    allowed = {}
    for name, role in (NAMES if names is None else names).items():
        public, secret = new_key_pair()
        write_secret(directory, name, secret)
        allowed[public] = Identity(name, role)
    write_allowed(directory, allowed)
    return directory


def take_back(directory: Path, name: str) -> None:
    """Let this name's key in no more."""
    allowed = read_allowed(directory)
    write_allowed(directory, {key: each for key, each in allowed.items() if each.name != name})


def security(directory: Path, name: str, *accepts: str) -> Security:
    """Of a process called `name`, which takes keys of these roles."""
    found = open_security(directory, name, *accepts)
    assert found is not None
    return found


class WithKeys(WithRawSockets):
    """Transports over ZeroMQ that have keys: `make(name=..., accepts=...)`, or one key for all."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        return make_keys(tmp_path / "keys")

    @pytest.fixture
    def make(self, keys: Path) -> Iterator[Make]:
        def kind(
            *, name: str = "switch", accepts: tuple[str, ...] = ROLES, **options: object
        ) -> ZeroMqTransport:
            own = security(keys, name, *accepts)
            return ZeroMqTransport(security=own, **options)  # type: ignore[arg-type]

        with maker(kind) as new:
            yield new


class ListeningForWorkers(WithKeys, ListeningAtTcp):
    """A switch that lets workers in, and where they find it."""

    @pytest.fixture
    def listener(self, make: Make) -> Transport:
        return make(accepts=("worker",))
