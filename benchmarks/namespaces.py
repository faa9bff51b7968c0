"""Hosts on this machine: network namespaces on one bridge, without root where the kernel allows it.

    centre   10.77.0.254   the bridge
    host i   10.77.0.<i+1> a veth to the bridge, with a rate at both ends (tbf); its own loopback

A namespace lives as long as the process that holds it, a `cat` whose input we hold. So nothing has
a name that could be left behind: when we end, however we end, the namespaces are gone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luwu.testing.cluster import SOURCE
from switch_emu.switch.host_link import read_counts

CENTRE, NETWORK = "10.77.0.254", "10.77.0.0/24"
INTERFACE = "up0"
"""Name of a host's link, on the host itself."""
MTU_BYTES = 9000
"""Jumbo frames, as clusters have them: headers take 0.7 % of the rate, at 1500 bytes 4.6 %."""
BURST_S, BURST_BYTES_MIN = 0.002, 128 * 1024
"""More than a packet of the kernel's before it is cut into frames."""
CONGESTION = "congctl cubic"
"""Linux's default, whatever this machine has: windows of BBR are too small beside a reverse stream
where a round trip takes microseconds (design note 0056)."""
QUEUE_S, QUEUE_BYTES_MIN = 0.05, 512 * 1024


class NoNamespaces(Exception):
    """This machine does not let us make them; the text says what it answered."""


class Hosts:
    """Use `hosts()`."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []

    def open(self, count: int, rate_bytes_per_s: float | None) -> None:
        """Make the centre and `count` hosts. Raises NoNamespaces."""
        for program in ("unshare", "nsenter", "ip", *(["tc"] if rate_bytes_per_s else [])):
            if shutil.which(program) is None:
                raise NoNamespaces(f"there is no {program} (packages util-linux and iproute2)")
        self._hold(["unshare", "--user", "--map-root-user", "--net", "cat"])
        self._ip(self.centre, "link add hub type bridge")
        self._ip(self.centre, f"addr add {CENTRE}/24 dev hub")
        self._ip(self.centre, "link set hub up")
        self._ip(self.centre, f"route replace {NETWORK} dev hub src {CENTRE} {CONGESTION}")
        self._ip(self.centre, "link set lo up")
        for index in range(count):
            self._hold([*self.centre, "unshare", "--net", "cat"])
            pid = self._holders[-1].pid
            near, far = f"to{index} mtu {MTU_BYTES}", f"{INTERFACE} mtu {MTU_BYTES}"
            self._ip(self.centre, f"link add {near} type veth peer name {far} netns {pid}")
            self._ip(self.centre, f"link set to{index} master hub up")
            host = self.host(index)
            self._ip(host, f"addr add {self.address(index)}/24 dev {INTERFACE}")
            self._ip(host, f"link set {INTERFACE} up")
            source = f"dev {INTERFACE} src {self.address(index)}"
            self._ip(host, f"route replace {NETWORK} {source} {CONGESTION}")
            self._ip(host, "link set lo up")
            if rate_bytes_per_s is not None:
                self._shape(self.centre, f"to{index}", rate_bytes_per_s)
                self._shape(host, INTERFACE, rate_bytes_per_s)

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

    def counts(self) -> list[dict[str, int]]:
        """Bytes on each host's link so far, by the kernel's count: `up` is from the host."""
        files = (Path(f"/proc/{holder.pid}/net/dev") for holder in self._holders[1:])
        found = (read_counts(file.read_text(encoding="ascii")) for file in files)
        return [{"up": up, "down": down} for up, down in found]

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

    def _shape(self, where: list[str], device: str, rate: float) -> None:
        burst = max(BURST_BYTES_MIN, round(rate * BURST_S))
        limit = burst + max(QUEUE_BYTES_MIN, round(rate * QUEUE_S))
        tbf = f"tbf rate {round(rate * 8)}bit burst {burst} limit {limit}"
        self._run([*where, "tc", *f"qdisc add dev {device} root {tbf}".split()])

    def _ip(self, where: list[str], arguments: str) -> str:
        return self._run([*where, "ip", *arguments.split()])

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


@contextmanager
def hosts(count: int, rate_bytes_per_s: float | None = None) -> Iterator[Hosts]:
    """Some hosts on one bridge; without a rate, links are as fast as the kernel. Raises
    NoNamespaces."""
    made = Hosts()
    try:
        made.open(count, rate_bytes_per_s)
        yield made
    finally:
        made.close()
