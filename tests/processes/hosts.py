"""Hosts on this machine: network namespaces on one bridge, without root where the kernel allows it.

    centre   10.77.0.254   the bridge; switch and node run here
    host i   10.77.0.<i+1> a veth to the bridge; its own loopback

A namespace lives as long as the process that holds it, a `cat` whose input we hold. So nothing has
a name that could be left behind: when we end, however we end, the namespaces are gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from luwu.testing.cluster import SOURCE

CENTRE = "10.77.0.254"


class NoNamespaces(Exception):
    """This machine does not let us make them; the text says what it answered."""


class Hosts:
    """Use `hosts()`."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []

    def open(self, count: int) -> None:
        """Make the centre and `count` hosts. Raises NoNamespaces."""
        for program in ("unshare", "nsenter", "ip"):
            if shutil.which(program) is None:
                raise NoNamespaces(f"there is no {program} (packages util-linux and iproute2)")
        self._hold(["unshare", "--user", "--map-root-user", "--net", "cat"])
        self._ip(self.centre, "link add hub type bridge")
        self._ip(self.centre, f"addr add {CENTRE}/24 dev hub")
        self._ip(self.centre, "link set hub up")
        self._ip(self.centre, "link set lo up")
        for index in range(count):
            self._hold([*self.centre, "unshare", "--net", "cat"])
            pid = self._holders[-1].pid
            self._ip(self.centre, f"link add to{index} type veth peer name up0 netns {pid}")
            self._ip(self.centre, f"link set to{index} master hub up")
            host = self.host(index)
            self._ip(host, f"addr add {self.address(index)}/24 dev up0")
            self._ip(host, "link set up0 up")
            self._ip(host, "link set lo up")

    @property
    def centre(self) -> list[str]:
        """Stands before a command that runs where the switch does."""
        return self._enter(0)

    def host(self, index: int) -> list[str]:
        """Stands before a command that runs on a host."""
        return self._enter(1 + index)

    def address(self, index: int) -> str:
        """Where the other hosts find it."""
        return f"10.77.0.{index + 1}"

    def is_on(self, index: int, pid: int) -> bool:
        """Whether a process runs on a host."""
        holder = self._holders[1 + index].pid
        try:
            return os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{holder}/ns/net")
        except OSError:
            return False  # it has ended

    def cut(self, index: int) -> None:
        """Cut a host off from the others."""
        self._ip(self.centre, f"link set to{index} down")

    def heal(self, index: int) -> None:
        """Connect it again."""
        self._ip(self.centre, f"link set to{index} up")

    def close(self) -> None:
        """Let the namespaces go."""
        for holder in reversed(self._holders):
            for end in (holder.stdin, holder.stdout, holder.stderr):
                assert end is not None
                end.close()
            holder.wait(10)

    def _enter(self, number: int) -> list[str]:
        pid = str(self._holders[number].pid)
        return ["nsenter", "--target", pid, "--user", "--net", "--preserve-credentials"]

    def _hold(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=SOURCE)
        self._holders.append(holder)
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            holder.stdin.write(b"there\n")
            holder.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        if holder.stdout.readline() != b"there\n":
            raise NoNamespaces(f"{command}: {holder.stderr.read().decode().strip()}")

    def _ip(self, where: list[str], arguments: str) -> None:
        command = [*where, "ip", *arguments.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNamespaces(f"ip {arguments}: {done.stderr.strip()}")


@contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Some hosts on one bridge. Raises NoNamespaces."""
    made = Hosts()
    try:
        made.open(count)
        yield made
    finally:
        made.close()
