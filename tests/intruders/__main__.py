"""Try to get into a job that runs, without the right to, and see that nobody notices but the log.

    python -m tests.intruders --count 1000 [--seed 0]

A small job trains over tcp with keys, as often as it takes: intruders of all kinds (`clients.py`),
in an order drawn from the seed, try it one after the other while it trains. Each must be refused,
and be in the log of whom it tried; each run must end with the digest of plain torch, without an
abort. The last line is `N trials, V violations`; exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from luwu.base.errors import LuwuError
from luwu.base.keys import Identity, OwnKey, read_allowed, read_secret, write_allowed
from luwu.join.connection import read_connection
from luwu.launch.processes.run_directory import RunDirectory
from luwu.nic.reader import StateReader
from luwu.testing.cluster import Cluster
from luwu.transport.curve import Security
from luwu.transport.zeromq import ZeroMqTransport
from luwu.wire.description import description_hash
from tests.helpers.key_directories import make_keys, take_back
from tests.helpers.waiting import is_soon
from tests.intruders.clients import AT_THE_NODE, CLIENTS, NAMES, Target
from tests.kill import TakenBadly, finish, start, wait_for_step
from tests.processes.jobs import Outside, light_digest

WORKERS: Final = 2
FIRST_STEP: Final = 2
"""Intruders come from here on: everybody has joined."""
LAST_STEPS: Final = 8
"""None comes in the last of them, for the job must still be there to refuse it."""
LOGGED_S: Final = 10.0
REFUSALS: Final = ("peer.refused", "switch.refused", "node.refused")


def refusals(events: Path) -> int:
    """How many there are by now in the events of a role."""
    text = events.read_bytes()
    return sum(text.count(f'"name":"{name}"'.encode()) for name in REFUSALS)


class Campaign:
    """Runs and trials so far."""

    def __init__(self, directory: Path, *, count: int, seed: int, steps: int) -> None:
        self.directory, self.count, self.steps = directory, count, steps
        self.keys = make_keys(directory / "keys", NAMES)
        self.violations: list[str] = []
        self.trials: Counter[str] = Counter()
        self._random = Random(seed)
        self._order: list[str] = []

    def start(self, name: str) -> tuple[Cluster, Outside]:
        """A run over tcp with keys."""
        outside = Outside(self.directory / f"{name}.tmp")
        flags = ["--keys", str(self.keys)]
        cluster = start(
            self.directory, name, steps=self.steps, restarts=0, outside=outside, transport="tcp",
            more_flags=flags,
        )  # fmt: skip
        return cluster, outside

    def run(self) -> None:
        """All of it. Raises TakenBadly, LuwuError."""
        plain = light_digest(self.steps, WORKERS)
        runs = 0
        while self.trials.total() < self.count:
            runs += 1
            before = self.trials.total()
            digest = self._attacked(f"attacked-{runs}")
            if digest != plain:
                self.violations.append(f"run {runs}: digest {digest[:12]}, plain {plain[:12]}")
            tried = self.trials.total() - before
            print(f"run {runs}: {tried} intruders, digest {digest[:12]}", flush=True)
            if not tried:
                raise TakenBadly("the run was over before an intruder came; give it more steps")

    def _attacked(self, name: str) -> str:
        cluster, outside = self.start(name)
        with cluster:
            wait_for_step(cluster, FIRST_STEP)
            target = self._target(cluster, name)
            run = cluster.run_directory
            while self.trials.total() < self.count and self._goes_on(cluster):
                self._try(target, run)
            digest = finish(cluster, outside)
        for role in ("switch", "node"):
            text = run.events(role).read_text(encoding="utf-8")
            for trouble in ('"node.abort"', "were started again"):
                if trouble in text:
                    self.violations.append(f"{name}: {trouble} in the events of the {role}")
        return digest

    def _target(self, cluster: Cluster, name: str) -> Target:
        """What can be known of the run; one key is taken back now."""
        connection = read_connection(cluster.run_directory.connect_file)
        assert connection is not None
        assert connection.switch is not None
        reader_key = Security(own=read_secret(self.keys, "reader"))
        with StateReader(
            ZeroMqTransport(security=reader_key), endpoint=connection.switch, job=connection.job
        ) as reader:
            reader.open()
            description = reader.description.to_bytes()
        return Target(
            job=connection.job, workers=WORKERS, switch=connection.switch, node=connection.node,
            keys=self.keys, revoked=self._revoked(name), description=description,
            description_hash=description_hash(description),
        )  # fmt: skip

    def _revoked(self, name: str) -> OwnKey:
        from luwu.transport.curve import new_key_pair

        public, secret = new_key_pair()
        write_allowed(self.keys, {**read_allowed(self.keys), public: Identity(name, "worker")})
        take_back(self.keys, name)
        return OwnKey(directory=self.keys, name=name, secret=secret)

    def _goes_on(self, cluster: Cluster) -> bool:
        log = cluster.run_directory.log("worker-0").read_text(errors="replace")
        steps = [int(found) for found in re.findall(r" step=(\d+) ", log)]
        return max(steps, default=0) < self.steps - LAST_STEPS

    def _try(self, target: Target, run: RunDirectory) -> None:
        if not self._order:
            self._order = list(CLIENTS)
            self._random.shuffle(self._order)
        kind = self._order.pop()
        events = run.events("node" if kind in AT_THE_NODE else "switch")
        before = refusals(events)
        self.trials[kind] += 1
        fault = CLIENTS[kind](target, self._random)
        if not fault and not is_soon(lambda: refusals(events) > before, LOGGED_S):
            fault = "its attempt is not in the log"
        if fault:
            self.violations.append(f"trial {self.trials.total()}, {kind}: {fault}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try as often as asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.intruders", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=100, help="trials (100)")
    parser.add_argument("--seed", type=int, default=0, help="draws who comes when (0)")
    parser.add_argument("--steps", type=int, default=200, help="of each run (200)")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="luwu-intruders-") as name:
        campaign = Campaign(Path(name), count=asked.count, seed=asked.seed, steps=asked.steps)
        try:
            campaign.run()
        except (TakenBadly, LuwuError) as error:
            campaign.violations.append(f"the run was disturbed: {error}")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(campaign.trials.items())))
    for violation in campaign.violations[:20]:
        print(f"VIOLATION (--seed {asked.seed}): {violation}")
    print(f"{campaign.trials.total()} trials, {len(campaign.violations)} violations")
    return 1 if campaign.violations else 0


if __name__ == "__main__":
    sys.exit(main())
