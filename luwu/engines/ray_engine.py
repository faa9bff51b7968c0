"""`luwu run --engine ray`: switch, node and workers placed and watched by Ray.

    one actor      `luwu up`: switch and node together, on any host of the cluster
    one a worker   the script, with RANK and its companions set; as many CPUs as compute threads

With --hosts a placement group keeps the workers of each host together. The first of them starts the
host's switch (`luwu/join/host.py`), so they are started again, and left out, together.

The run directory is here: what the processes print and what ends them is brought into it, so
errors and exit codes are those of the local engine. Actors end with us; what they run, with them.

An actor receives command lines and texts, and answers with texts and numbers: Ray pickles what it
carries (I7; design note 0023). Nothing of the training goes this way: workers, switch and node talk
over LuWu's own connections.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.closing import Closing
from luwu.base.config import KEYS, Resolved, as_mapping, value_text
from luwu.base.errors import (
    STOP_SIGNALS,
    ConfigError,
    ConnectionFailed,
    DeadlineError,
    Interrupted,
    LuwuError,
    WorkerFailed,
)
from luwu.base.own import needs
from luwu.base.tree import ranges_text
from luwu.join.connection import read_connection
from luwu.launch.processes.children import Child, kill_marked, stop_all
from luwu.launch.processes.console import Console
from luwu.launch.processes.failures import error_of_code, lost_worker, worker_failure
from luwu.launch.processes.guard import MARK_SUFFIX, guarded
from luwu.launch.processes.relay import Relay
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import STATE_DIRECTORY
from luwu.launch.specs import key_environ
from luwu.launch.supervisor import STOP_PATIENCE_S
from luwu.launch.worker_loss import worker_restarts


class Runner:
    """The class of an actor: one process under our guard, and a run directory of its own, removed
    at the end."""

    def __init__(self, work_directory: str) -> None:
        os.chdir(work_directory)  # as if it had been started there
        self._run = RunDirectory.create(Path(tempfile.mkdtemp(prefix="luwu-ray-")) / "run")
        self._run_id = f"ray-{os.getpid()}-{self._run.path.parent.name}"
        self._child: Child | None = None
        self._log_offset = 0
        self._relay: Relay | None = None
        self._streams: list[tuple[bytes, bool]] = []

    def folder(self) -> str:
        """The run directory, on this host."""
        return str(self._run.path)

    def start(
        self, name: str, module: str, arguments: Sequence[str], environ: Mapping[str, str],
        *, with_streams: bool = False,
    ) -> None:  # fmt: skip
        """Start `python -m module arguments` under the guard; its output is that of `name`.

        `with_streams`: standard output and standard error are also kept apart, for `look`.
        """
        if with_streams:
            self._relay = Relay(self._run, name, lambda *part: self._streams.append(part))
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("LUWU_")}
        self._child = Child(
            name,
            guarded(self._run_id, [sys.executable, "-m", module, *arguments]),
            log=self._run.log(name),
            environ={**inherited, "PYTHONUNBUFFERED": "1", **environ},
        )

    def look(self) -> tuple[int | None, bytes, list[tuple[bytes, bool]]]:
        """Its exit code (None while it runs), what is new in its log, and in its streams.

        Each part of the streams says whether it is of standard error.
        """
        assert self._child is not None
        code = self._child.poll()
        if self._relay is not None:
            self._relay.look()
        with self._child.log.open("rb") as log:
            log.seek(self._log_offset)
            new = log.read()
        self._log_offset += len(new)
        streams, self._streams = self._streams, []
        return code, new, streams

    def read(self, name: str) -> str | None:
        """A file of the run directory."""
        try:
            return (self._run.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def stop(self) -> None:
        """End what still runs, and remove what it left."""
        if self._child is not None:
            stop_all([self._child], patience_s=STOP_PATIENCE_S)
        kill_marked(self._run_id + MARK_SUFFIX)
        shutil.rmtree(self._run.path.parent, ignore_errors=True)


POLL_S: Final = 0.1
ENDING_S: Final = 60.0
STOP_S: Final = 10.0
LAST_LINES_COUNT: Final = 20
BEGINNINGS: Final = ("no state in ", "resuming at ")
"""How the line of `luwu up --resume` begins that says where it begins."""
SIGNALLED: Final = 128
"""The guard of a process that signal N ended exits with this and N."""
NOT_OF_UP: Final = ("run_dir", "state", "join", "transport", "bind", "insecure", "key_name")
"""Keys of `luwu up` that we set ourselves."""


@dataclass(slots=True)
class Placed:
    """An actor, and how its process is doing."""

    name: str
    actor: Any = None
    code: int | None = None
    last_lines: list[str] = field(default_factory=list)

    @property
    def is_worker(self) -> bool:
        """False of switch and node."""
        return self.name.startswith("worker ")

    @property
    def process(self) -> str:
        """The name of its files in a run directory."""
        return self.name.replace(" ", "-")

    @property
    def rank(self) -> int:
        """That of a worker."""
        return int(self.name.removeprefix("worker "))


class RayEngine(Closing):
    """The processes of one run on a Ray cluster. Use it as a context manager."""

    def __init__(
        self, run: RunDirectory, resolved: Resolved, console: Console,
        should_stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Connect to the cluster that RAY_ADDRESS names, or that runs here. Raises ConfigError."""
        try:
            import ray
        except ImportError as exc:
            text = f"engine: ray is not installed ({exc}); {needs('ray')}"
            raise ConfigError(text, code="E208") from exc
        config = resolved.config
        if config.transport not in ("auto", "tcp"):
            raise ConfigError(
                f"transport: {config.transport} joins processes of one host, and Ray may "
                "place them on several; leave --transport out"
            )
        self._per_host = config.workers // config.hosts if config.hosts > 1 else 1
        """Workers that Ray keeps on one host."""
        self._hosts: Any = None
        """The placement group of the hosts of workers."""
        self._ray = ray
        self._run, self._resolved, self._console = run, resolved, console
        self._should_stop = should_stop
        self._placed: list[Placed] = []
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            try:
                ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False,
                         logging_level="warning")  # fmt: skip
                for number, handler in before.items():
                    signal.signal(number, handler)  # Ray's own for SIGTERM leaves actors running
            except ConnectionError as exc:
                raise ConnectionFailed(f"no Ray cluster: {exc}; ray start --head") from exc

    def work(self, script: Sequence[str]) -> None:
        """Serve, train and return when all has ended. Raises what went wrong."""
        if self._resolved.config.hosts > 1:
            self._reserve(self._resolved.config.hosts)
        [serving] = self._place(["switch and node"], 1)
        self._serve(serving)
        try:
            self._train(serving, script)
        except Interrupted:  # how far it came, for the message
            self._fetch(serving, "up/events/node.jsonl", self._run.events("node"))
            raise
        self._fetch(serving, "up/results/node.json", self._run.result("node.json"))

    def _train(self, serving: Placed, script: Sequence[str]) -> None:
        connect = self._wait_for_connection(serving)
        config = self._resolved.config
        policy, restarts_left = config.on_worker_loss, worker_restarts(config)
        workers = self._start_workers(script, connect, range(config.workers))
        while (found := self._watch([serving, *workers], workers)) is not None:
            lost, error = found
            self._look(serving, [])
            if serving.code == 0:  # its workers have left: nothing of the job is missing
                break
            host = self._host_of(lost)
            gone = [each for each in workers if policy == "stop" or self._host_of(each) == host]
            others = [worker for worker in workers if worker not in gone]
            ranks = [worker.rank for worker in gone]
            first, who = str(error).partition("\n")[0], f"ranks {ranges_text(ranks)}"
            if restarts_left:
                restarts_left -= 1
                self._console.say(f"{first}; {who} are started again, {restarts_left} left")
            elif policy == "drop" and others:
                self._console.say(f"{first}; the others go on without {who}")
                ranks = []
            else:
                raise error
            for worker in gone:
                self._stop(worker)
            try:
                workers = [*others, *self._start_workers(script, connect, ranks)]
            except ConnectionFailed as missing:  # Ray has no place for it
                if policy != "drop" or not others:
                    raise
                self._console.say(f"{missing}; the others go on without {who}")
                for worker in self._placed[-len(ranks) :]:
                    self._stop(worker)
                workers = others
        self._watch([serving], [serving], limit_s=ENDING_S)

    # ---------------------------------------------------------------------- placing

    def _reserve(self, hosts: int) -> None:
        """Have Ray find different hosts for the workers. Raises ConnectionFailed."""
        cpus = self._per_host * int(_environ()["OMP_NUM_THREADS"])
        bundles = [{"CPU": cpus}] * hosts
        self._hosts = self._ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
        if not self._hosts.wait(self._resolved.config.connect_timeout):
            asked = f"{cpus} CPUs on each of {hosts} hosts"
            raise ConnectionFailed(self._missing_text("workers", asked))

    def _host_of(self, worker: Placed) -> int:
        """The number of its host; without --hosts, each has one of its own."""
        return worker.rank // self._per_host

    def _create(self, placed: Placed, cpus: int) -> None:
        """Ask Ray for its actor, on the host of its ranks."""
        where: Any = "SPREAD"
        if self._hosts is not None and placed.is_worker:
            where = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._hosts, placement_group_bundle_index=self._host_of(placed)
            )
        make = self._ray.remote(num_cpus=cpus, max_restarts=0, scheduling_strategy=where)(Runner)
        placed.actor = make.remote(os.getcwd())

    def _place(self, names: Sequence[str], cpus: int) -> list[Placed]:
        """Actors, once Ray has found a host for each. Raises ConnectionFailed."""
        placed = [Placed(name) for name in names]
        self._placed += placed
        for each in placed:
            self._create(each, cpus)
        for each in placed:
            if self._loss_of(each, cpus):  # its host was lost, and Ray did not know it yet
                self._create(each, cpus)
                if loss := self._loss_of(each, cpus):
                    text = f"the {each.name} cannot run where Ray placed it: {loss}"
                    raise ConnectionFailed(text) from loss
        return placed

    def _loss_of(self, placed: Placed, cpus: int) -> Exception | None:
        """Wait for an actor; how it was lost before it ran, if it was. Raises ConnectionFailed."""
        errors = self._ray.exceptions
        try:
            limit_s = self._resolved.config.connect_timeout
            self._ray.get(placed.actor.folder.remote(), timeout=limit_s)
        except errors.GetTimeoutError as exc:
            raise ConnectionFailed(self._missing_text(placed.name, f"{cpus} CPUs")) from exc
        except errors.RayError as exc:
            return exc
        return None

    def _missing_text(self, name: str, asked: str) -> str:
        """Why Ray has not started what asks for so many CPUs in time."""
        limit_s = self._resolved.config.connect_timeout
        free = self._ray.available_resources().get("CPU", 0)
        return (
            f"Ray has not started the {name} within {limit_s:.0f} s: it is asked for {asked}, and "
            f"the cluster has {self._ray.cluster_resources().get('CPU', 0):g}, {free:g} of them "
            "free; give it more, lower OMP_NUM_THREADS, or raise --connect-timeout if its hosts "
            "start processes slowly"
        )

    def _serve(self, serving: Placed) -> None:
        config = self._resolved.config
        address = self._ask(serving, serving.actor.__ray_call__.remote(_address))
        state = config.state or STATE_DIRECTORY
        flags = [
            f"{KEYS[name].flag}={value_text(name, value)}"
            for name, value in as_mapping(config).items()
            if "up" in KEYS[name].verbs and name not in NOT_OF_UP
            and not self._resolved.is_default(name)
        ]  # fmt: skip
        if config.state is not None or config.durability != "none":
            flags.append(f"--state={state.absolute()}")
        folder = self._ask(serving, serving.actor.folder.remote())
        flags.append(f"--bind=tcp://{address}:0")
        if config.insecure:
            flags.append("--insecure")
        arguments = ["up", "--verbose", *flags, "--run-dir", f"{folder}/up"]
        self._ask(serving, serving.actor.start.remote("up", "luwu", arguments, _environ()))
        self._console.say(f"switch and node on {address}, by Ray; --state is a path there")

    def _wait_for_connection(self, serving: Placed) -> str:
        """The URL of the job."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(self._resolved.config.connect_timeout * 1e9)
        while True:
            self._look(serving, [])
            text = self._ask(serving, serving.actor.read.remote("up/connect.json"))
            if text is not None:
                self._run.connect_file.write_text(text, encoding="utf-8")
                connection = read_connection(self._run.connect_file)
                assert connection is not None
                return connection.url()
            if SYSTEM_CLOCK.now_ns() > end_ns:
                raise ConnectionFailed(
                    "switch and node did not listen in time; their last words:\n"
                    + "\n".join(serving.last_lines)
                )
            sleep(POLL_S)

    def _start_workers(
        self, script: Sequence[str], connect: str, ranks: Sequence[int]
    ) -> list[Placed]:
        config = self._resolved.config
        threads = int(_environ()["OMP_NUM_THREADS"])
        count = len(ranks)
        self._console.detail(f"{count} workers, {threads} compute threads each (OMP_NUM_THREADS)")
        named = list(script)
        if named[0] != "-m":
            named[0] = str(Path(named[0]).absolute())
        workers = self._place([f"worker {rank}" for rank in ranks], threads)
        for worker in workers:
            folder = self._ask(worker, worker.actor.folder.remote())
            environ = {
                **_environ(), **key_environ(config), "LUWU_CONNECT": connect,
                "RANK": str(worker.rank), "WORLD_SIZE": str(config.workers),
                "LUWU_EVENTS": f"{folder}/events",
                "LOCAL_RANK": str(worker.rank % self._per_host),
                "LOCAL_WORLD_SIZE": str(self._per_host),
            }  # fmt: skip
            for name in ("run_dir", "switch_memory_budget"):  # for the switch of its host
                if not self._resolved.is_default(name):
                    text = value_text(name, getattr(config, name))
                    environ[f"LUWU_{name.upper()}"] = str(text)
            starting = worker.actor.start.remote(
                worker.process, "luwu.launch.entry", [folder, "", *named], environ,
                with_streams=worker.rank == 0,
            )  # fmt: skip
            self._ask(worker, starting)
            self._run.error(worker.process).unlink(missing_ok=True)
        return workers

    # ---------------------------------------------------------------------- watching

    def _watch(
        self, watched: Sequence[Placed], awaited: Sequence[Placed], limit_s: float | None = None
    ) -> tuple[Placed, WorkerFailed] | None:
        """Return when all that are awaited have ended well, or a worker was lost: which, and how.
        Raises what else went wrong."""
        end_ns = None if limit_s is None else SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while any(each.code is None for each in awaited):
            for each in watched:
                if each.code is None:
                    try:
                        self._look(each, awaited)
                    except WorkerFailed as error:
                        return each, error
            if end_ns is not None and SYSTEM_CLOCK.now_ns() > end_ns:
                raise DeadlineError(f"{awaited[0].name} did not end within {limit_s:.0f} s")
            sleep(POLL_S)
        return None

    def _look(self, placed: Placed, workers: Sequence[Placed]) -> None:
        if self._should_stop():
            raise Interrupted("interrupted; every process of the run is being stopped")
        placed.code, new, streams = self._ask(placed, placed.actor.look.remote())
        for data, is_error in streams:
            self._console.pass_on(data, is_error)
        if new:
            lines = new.decode(errors="replace").splitlines()
            placed.last_lines = [*placed.last_lines, *lines][-LAST_LINES_COUNT:]
            for line in lines:
                if not placed.is_worker and line.startswith(BEGINNINGS):
                    self._console.say(line)
            with self._run.log(placed.process).open("ab") as log:
                log.write(new)
        if placed.code in (None, 0):
            return
        if not placed.is_worker:
            text = "\n".join(placed.last_lines).partition("luwu up: ")
            raise error_of_code(placed.code, f"switch and node: {text[2] or text[0]}")
        errors = [self._run.error(worker.process) for worker in workers]
        for worker, error in zip(workers, errors, strict=True):
            self._fetch(worker, f"errors/{worker.process}.json", error)
        if not any(error.exists() for error in errors):
            role = self._run.role(f"{placed.process}.json")
            self._fetch(placed, f"roles/{placed.process}.json", role)
            code = placed.code if placed.code <= SIGNALLED else SIGNALLED - placed.code
            raise lost_worker(self._run, placed.rank, code)
        raise worker_failure(self._run, "", placed.code)

    def _fetch(self, placed: Placed, name: str, file: Path) -> None:
        """Bring a file of an actor's run directory into ours, if there is one."""
        text = self._ask(placed, placed.actor.read.remote(name))
        if text is not None:
            file.write_text(text, encoding="utf-8")

    def _ask(self, placed: Placed, answer: Any) -> Any:
        """The answer of an actor. Raises LuwuError if the actor is gone."""
        try:
            return self._ray.get(answer, timeout=self._resolved.config.connect_timeout)
        except self._ray.exceptions.RayError as exc:
            kind: type[LuwuError] = WorkerFailed if placed.is_worker else ConnectionFailed
            raise kind(
                f"Ray lost the {placed.name}, or the host it ran on: {exc}\n"
                "The state is where it was: start the run again with --resume"
            ) from exc

    def _stop(self, placed: Placed) -> None:
        try:
            self._ray.get(placed.actor.stop.remote(), timeout=STOP_S)
        except self._ray.exceptions.RayError:
            pass  # it is gone, and what it ran with it
        self._ray.kill(placed.actor)
        self._placed.remove(placed)

    def close(self) -> None:
        """Stop what still runs, everywhere."""
        for placed in list(reversed(self._placed)):
            self._stop(placed)
        if self._hosts is not None:
            self._ray.util.remove_placement_group(self._hosts)
        if self._is_ours:
            self._ray.shutdown()


def _address(runner: Runner) -> str:
    """Address of the host of an actor, according to Ray."""
    import ray

    return str(ray.util.get_node_ip_address())


def _environ() -> dict[str, str]:
    """Environment variables that processes on other hosts inherit from ours."""
    names = [name for name in os.environ if name == "PYTHONPATH" or name.startswith("OMP_")]
    return {"OMP_NUM_THREADS": "1", **{name: os.environ[name] for name in names}}
