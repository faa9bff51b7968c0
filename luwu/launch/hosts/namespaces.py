"""Hosts on one machine: network namespaces in a star, each joined to the centre by a shaped link.

                    centre: the switches that no host has          10.213.255.1
        l0 |             l1 |             l2 |                     10.213.K.1
    ==== tbf ====    ==== tbf ====    ==== tbf ====                veth, shaped at both ends
      eth0 |           eth0 |           eth0 |                     10.213.K.2
        node             host-0           host-1

What goes from host to host is forwarded by the centre, over both their links. A namespace has no
name and no file: it lives as long as the process that holds it open (`cat`, which ends with our end
of its pipe) and those inside. So nothing can be left behind, however we end, and nothing has to be
swept: the kernel removes the links with the namespaces (I8).

As root, or else in a user namespace of our own where the system allows one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.errors import ConfigError
from luwu.launch.processes.children import MARK, Child, stop_all

NODE_HOST: Final = "node"
CENTRE: Final = "centre"
CENTRE_ADDRESS: Final = "10.213.255.1"
INTERFACE: Final = "eth0"
"""In every namespace but the centre's: gloo and NCCL are told of it."""
MTU_BYTES: Final = 9000
"""Jumbo frames, as clusters have them: headers take 0.7 % of the rate, at 1500 bytes 4.6 %."""
BURST_S: Final = 0.002
BURST_BYTES_MIN: Final = 128 * 1024
"""More than a packet of the kernel's before it is cut into frames."""
QUEUE_S: Final = 0.05
QUEUE_BYTES_MIN: Final = 512 * 1024
TOOLS: Final = ("ip", "tc", "unshare", "nsenter")
_MADE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """The kernel's count at a host's end of its link."""

    up: int = 0
    """Sent to the centre."""
    down: int = 0
    dropped: int = 0

    def since(self, before: LinkBytes) -> LinkBytes:
        """The difference to an earlier count."""
        earlier = asdict(before)
        return LinkBytes(**{name: value - earlier[name] for name, value in asdict(self).items()})


class Namespaces(Closing):
    """The namespaces of one run. Use it as a context manager."""

    def __init__(
        self, hosts_count: int, rate_bytes_per_s: float | None, *, log: Path, run_id: str
    ) -> None:
        """`rate_bytes_per_s`: of each direction of each link; None: as fast as the kernel is.

        Raises: ConfigError where the system does not allow it.
        """
        _check_tools()
        self.rate_bytes_per_s = rate_bytes_per_s
        self.hosts = tuple(f"host-{index}" for index in range(hosts_count))
        self.linked = (NODE_HOST, *self.hosts)
        self._log, self._run_id = log, run_id
        self._holders: dict[str, Child] = {}
        self._is_root = os.geteuid() == 0
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def enter(self, where: str) -> list[str]:
        """The start of a command line for a process in a namespace; its number stays its own."""
        pid = self._holders[where].pid
        command = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        if not self._is_root:
            command += [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"]
        return [*command, "--"]

    def address(self, where: str) -> str:
        """The address of a namespace for all others."""
        return CENTRE_ADDRESS if where == CENTRE else f"10.213.{self.linked.index(where)}.2"

    def counts(self) -> dict[str, LinkBytes]:
        """The kernel's counters of every link so far."""
        return {where: self._count(where) for where in self.linked}

    def close(self) -> None:
        """End the holders; the namespaces go with the last process inside."""
        stop_all(list(self._holders.values()), patience_s=1.0)
        self._holders.clear()

    # ---------------------------------------------------------------------- making them

    def _make(self) -> None:
        unshare = ["unshare", "--net"]
        if not self._is_root:
            unshare += ["--user", "--map-root-user"]
        self._hold(CENTRE, unshare)
        inside = ["unshare", "--net"] if self._is_root else [*self._in_user(), "unshare", "--net"]
        for where in self.linked:
            self._hold(where, inside)
        self._do(CENTRE, "ip", "link", "set", "lo", "up")
        self._do(CENTRE, "ip", "addr", "add", f"{CENTRE_ADDRESS}/32", "dev", "lo")
        forward = ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]
        self._do(CENTRE, *forward)
        for index, where in enumerate(self.linked):
            self._link(index, where)

    def _hold(self, where: str, command: Sequence[str]) -> None:
        holder = Child(
            f"namespace {where}", [*command, "cat"], log=self._log,
            environ={**os.environ, MARK: self._run_id},
        )  # fmt: skip
        self._holders[where] = holder
        ours = os.readlink("/proc/self/ns/net")
        taken = {self._net(each) for each in self._holders if each != where}

        def is_made() -> bool:
            if holder.poll() is not None:
                raise ConfigError(_refusal(self._is_root, self._log))
            return self._net(where) not in (ours, "", *taken) and _command(holder.pid) == "cat"

        _wait_until(is_made, f"a namespace for {where}")

    def _net(self, where: str) -> str:
        try:
            return os.readlink(f"/proc/{self._holders[where].pid}/ns/net")
        except OSError:
            return ""

    def _in_user(self) -> list[str]:
        pid = self._holders[CENTRE].pid
        return ["nsenter", f"--user=/proc/{pid}/ns/user", "--preserve-credentials", "--"]

    def _link(self, index: int, where: str) -> None:
        """A veth between the centre and a host, with a rate at each end."""
        centre_end, subnet = f"l{index}", f"10.213.{index}"
        holder = str(self._holders[where].pid)
        self._do(
            CENTRE, "ip", "link", "add", centre_end, "mtu", str(MTU_BYTES), "type", "veth",
            "peer", "name", INTERFACE, "mtu", str(MTU_BYTES), "netns", holder,
        )  # fmt: skip
        for place, device, address in (
            (CENTRE, centre_end, f"{subnet}.1"), (where, INTERFACE, f"{subnet}.2"),
        ):  # fmt: skip
            self._do(place, "ip", "addr", "add", f"{address}/30", "dev", device)
            self._do(place, "ip", "link", "set", device, "up")
            if self.rate_bytes_per_s is not None:
                self._do(place, "tc", "qdisc", "add", "dev", device, "root", *self._shape())
        self._do(where, "ip", "link", "set", "lo", "up")
        self._do(where, "ip", "route", "add", "default", "via", f"{subnet}.1")

    def _shape(self) -> list[str]:
        rate = self.rate_bytes_per_s
        assert rate is not None
        burst = max(BURST_BYTES_MIN, round(rate * BURST_S))
        queue = max(QUEUE_BYTES_MIN, round(rate * QUEUE_S))
        return [
            "tbf", "rate", f"{round(rate * 8)}bit", "burst", str(burst), "limit", str(burst + queue)
        ]  # fmt: skip

    def _count(self, where: str) -> LinkBytes:
        text = self._do(where, "ip", "-s", "-j", "link", "show", "dev", INTERFACE)
        found: dict[str, Any] = json.loads(text)[0]["stats64"]
        received, sent = found["rx"], found["tx"]
        return LinkBytes(
            up=sent["bytes"], down=received["bytes"], dropped=sent["dropped"] + received["dropped"]
        )

    def _do(self, where: str, *command: str) -> str:
        """Run a tool in a namespace; what it printed. Raises ConfigError."""
        try:
            done = subprocess.run(
                [*self.enter(where), *command], capture_output=True, text=True, timeout=20,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise ConfigError(f"hosts: cannot run {' '.join(command)}: {exc}") from exc
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            raise ConfigError(
                f"hosts: `{' '.join(command)}` in the namespace of {where} failed: {said}; it "
                "needs a kernel with veth and tbf, and CAP_NET_ADMIN inside (root, or user "
                f"namespaces). {INSTEAD}"
            )
        return done.stdout


INSTEAD: Final = "Without --hosts, --link emulates links in the processes and needs no rights"


def check_namespaces() -> None:
    """Refuse what this machine cannot do, before anything starts. Raises ConfigError."""
    _check_tools()
    command = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    try:
        done = subprocess.run(
            [*command, "true"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(f"hosts: cannot run unshare: {exc}. {INSTEAD}") from exc
    if done.returncode != 0:
        raise ConfigError(_refused(os.geteuid() == 0, done.stderr.strip()))


def _check_tools() -> None:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise ConfigError(
            f"hosts: {' and '.join(missing)} not found; install iproute2 and util-linux "
            f"(apt-get install iproute2 util-linux). {INSTEAD}"
        )


def _refusal(is_root: bool, log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return _refused(is_root, lines[-1] if lines else "unshare ended")


def _refused(is_root: bool, said: str) -> str:
    what = (
        "run with CAP_SYS_ADMIN, in a container for instance with --cap-add SYS_ADMIN"
        if is_root
        else "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces above 0)"
    )
    return f"hosts: network namespaces are not allowed here ({said}); {what}. {INSTEAD}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    end_ns = SYSTEM_CLOCK.now_ns() + int(_MADE_S * 1e9)
    while not condition():
        if SYSTEM_CLOCK.now_ns() > end_ns:
            raise ConfigError(f"hosts: {what} was not there within {_MADE_S:.0f} s. {INSTEAD}")
        sleep(0.005)
