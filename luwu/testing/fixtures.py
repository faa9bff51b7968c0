"""The objects that the plugin's fixtures return; imported when one of them is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from luwu.base.errors import ConfigError
from luwu.launch.processes.failures import error_of_code
from luwu.launch.processes.run_directory import RunDirectory
from luwu.testing.calls import load_value, name_function, result_folder, write_call
from luwu.testing.cluster import Cluster
from luwu.testing.leftovers import until_empty
from luwu.testing.namespaces import External, Namespace, ProcService
from luwu.testing.record import Record
from luwu.testing.running import Running
from luwu.testing.settings import setting

_OUR_THREADS: Final = ("luwu-", "node", "switch", "worker-")
ServiceLike = ProcService | Namespace | External


class Runner:
    """`luwu_run`: functions in fresh worker processes."""

    def __init__(self, request: pytest.FixtureRequest, record: Record) -> None:
        self._request, self._record = request, record
        self._started: list[Call] = []

    def __call__(
        self, fn: Callable[..., Any], *, workers: int | None = None, args: Sequence[object] = (),
        service: ServiceLike | None = None, timeout: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call fn(rank, *args) in each worker; what it returned, by rank.

        `service`: whose switch and node they use; luwu_proc unless given.

        Raises: the first failure, with that worker's traceback in its message.
        """
        call = self.start(fn, workers=workers, args=args, service=service, timeout=timeout)
        return call.wait()

    def start(
        self, fn: Callable[..., Any], *, workers: int | None = None, args: Sequence[object] = (),
        service: ServiceLike | None = None, timeout: float | None = None,
    ) -> Call:  # fmt: skip
        """The same without waiting: `.kill(rank)` a worker, then `.wait()` for the end."""
        name_function(fn)  # refused before anything starts
        if isinstance(service, External):
            workers = service.take(workers)
        count = _setting(self._request, "workers", workers)
        timeout_s = _setting(self._request, "timeout", timeout)
        if service is None:
            service = self._request.getfixturevalue("luwu_proc")
        if not isinstance(service, ServiceLike):
            raise ConfigError(
                f"service={service!r:.60}; give a fixture made by luwu.testing.factories, or "
                "luwu_session"
            )
        call = Call(self._record, service, fn, args, workers=count, timeout_s=timeout_s)
        self._started.append(call)
        return call

    def close(self) -> None:
        """Stop what the test did not wait for: that is a leak."""
        for call in self._started:
            if not call.is_settled:
                self._record.leaks.append(f"a run of {call.name} that the test did not wait for")
            call.stop()


class Call:
    """One function in its workers, with the job they join."""

    def __init__(
        self, record: Record, service: ServiceLike, fn: Callable[..., Any],
        args: Sequence[object], *, workers: int, timeout_s: float,
    ) -> None:  # fmt: skip
        self.name = fn.__qualname__
        self.is_settled = False
        """True if its end was waited for."""
        self._record = record
        self._namespace: Namespace | None = None
        self._owns_namespace = isinstance(service, ProcService)
        directory = record.folder("call")
        if isinstance(service, ProcService):
            self._namespace = service.namespace(directory)
        elif isinstance(service, Namespace):
            self._namespace = service
        try:
            file = write_call(directory / "call", fn, args)
            if self._namespace is None:
                assert isinstance(service, External)
                run, connect, job = RunDirectory.create(directory / "run"), service.connect, None
            else:
                record.watch_service(self._namespace.service)
                job = self._namespace.start(workers)
                run, connect = job.run, str(job.run.connect_file)
            self._running = Running(
                run, file, workers=workers, connect=connect, timeout_s=timeout_s, job=job
            )
        except BaseException:
            self.is_settled = True
            self._drop()
            raise

    def kill(self, rank: int, **signal: Any) -> int:
        """Send SIGKILL, or `number=`, to a worker once its function runs; its pid."""
        return self._running.kill(rank, **signal)

    def wait_for_text(self, rank: int, text: str) -> None:
        """Return when a worker has printed a text."""
        self._running.wait_for_text(rank, text)

    def wait(self) -> list[Any]:
        """The function's results, by rank. Raises the first failure."""
        self.is_settled = True
        try:
            results = self._running.wait()
            if self._namespace is not None:
                self._namespace.end(has_joined=self._running.has_joined)
            return results
        finally:
            self._drop()

    def stop(self) -> None:
        """End the workers and let go of the job, whatever they do."""
        if not self.is_settled:
            self.is_settled = True
            self._running.close()
            self._drop()

    def _drop(self) -> None:
        running = getattr(self, "_running", None)
        if running is not None:
            self._record.leaks += running.leaks
        if self._namespace is not None:
            self._namespace.abandon()
            if self._owns_namespace:
                self._record.leaks += self._namespace.drop()


class InprocRunner:
    """`luwu_inproc`: switch, node and workers as threads of this process."""

    def __init__(self, request: pytest.FixtureRequest, record: Record) -> None:
        self._request, self._record = request, record
        self._threads = set(threading.enumerate())

    def __call__(
        self, fn: Callable[..., Any], *, workers: int | None = None, args: Sequence[object] = (),
        **options: Any,
    ) -> list[Any]:  # fmt: skip
        """Call fn(rank, *args) in a thread for each worker; what it returned, by rank.

        `fn` may be any callable and return anything: nothing leaves this process. `options` are
        those of `luwu.launch.local_cluster.LocalCluster`.
        """
        from luwu.launch.local_cluster import LocalCluster
        from luwu.training.script.run import finish_at_end, offer

        world_size: int = _setting(self._request, "workers", workers)
        folder = self._record.folder("inproc")
        folder.mkdir()

        asked = {
            "memory_budget_bytes": 64 * 1024 * 1024,
            "state": folder / "state",
            "grace_s": _setting(self._request, "timeout"),
            **options,
        }
        with LocalCluster(world_size=world_size, summary=folder / "node.json", **asked) as cluster:

            def work(rank: int) -> Any:
                offer(cluster.nic(rank))
                result = fn(rank, *args)
                finish_at_end()  # if it began at all
                return result

            return list(cluster.run_ranks(work))

    def close(self) -> None:
        """Nothing of it runs any more; what else a test starts in its own process is its own."""
        self._record.leaks += until_empty(
            lambda: [
                f"thread {thread.name}"
                for thread in threading.enumerate()
                if thread not in self._threads and thread.name.startswith(_OUR_THREADS)
            ]
        )


class WholeCluster(Cluster):
    """All processes of a `luwu run`."""

    call: Path | None = None
    """The folder of the function's results, if it runs one."""

    def returned(self, limit_s: float = 120) -> list[Any]:
        """The function's results, by rank, once `luwu run` has ended well.

        Raises: WorkerFailed, or the error of the exit code, if it has not.
        """
        if self.call is None:
            raise ConfigError("this cluster runs a script, which returns nothing; see results()")
        code = self.wait(limit_s)
        if code != 0:
            raise error_of_code(code, f"luwu run ended with exit code {code}:\n{self.told}")
        folders = sorted(self.call.parent.glob("result-*"), key=lambda each: int(each.name[7:]))
        assert folders[0] == result_folder(self.call, 0)
        return [load_value(folder) for folder in folders]


class ClusterFactory:
    """`luwu_cluster`: starts clusters, and ends them after the test."""

    def __init__(self, request: pytest.FixtureRequest, record: Record) -> None:
        self._request, self._record = request, record
        self._clusters: list[WholeCluster] = []

    def __call__(
        self, target: Callable[..., Any] | str | Path, *arguments: str,
        workers: int | None = None, args: Sequence[object] = (), flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> WholeCluster:  # fmt: skip
        """Start `luwu run` on a function, as fn(rank, *args), or on a script and its arguments.

        `flags`: more of `luwu run`, such as ("--restarts", "0").
        """
        directory = self._record.folder("cluster")
        directory.mkdir()
        call = None
        if callable(target):
            call = write_call(directory / "call", target, args)
            script = ["-m", "luwu.testing.worker", str(call)]
        else:
            script = [str(Path(target).absolute()), *arguments]
        count = _setting(self._request, "workers", workers)
        asked = ["--workers", str(count), "--memory-budget", "256MiB", *flags]
        cluster = WholeCluster.run(directory, *script, flags=asked, environ=environ)
        cluster.call = call
        self._clusters.append(cluster)
        return cluster

    def close(self) -> None:
        """End what still runs; nothing of it may be left."""
        for cluster in self._clusters:
            cluster.close()
            self._record.leaks += cluster.wait_until_clean()


def _setting(request: pytest.FixtureRequest, name: str, argument: Any = None) -> Any:
    """A setting of the test that uses a fixture."""
    return setting(request.config, name, argument, item=request.node)
