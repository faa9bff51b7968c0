"""The objects that the plugin's fixtures return; imported when one of them is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from luwu.testing.calls import write_call
from luwu.testing.cluster import Cluster
from luwu.testing.leftovers import until_empty
from luwu.testing.record import Record
from luwu.testing.settings import setting

_OUR_THREADS: Final = ("luwu-", "node", "switch", "worker-")


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


class ClusterFactory:
    """`luwu_cluster`: starts clusters, and ends them after the test.

    `FLAGS` come before those of a test: small, and without a flush for each step, as a test's state
    need not survive a power loss.
    """

    FLAGS: Final = ("--memory-budget", "256MiB", "--durability", "process")

    def __init__(self, request: pytest.FixtureRequest, record: Record) -> None:
        self._request, self._record = request, record
        self._clusters: list[Cluster] = []

    def __call__(
        self, target: Callable[..., Any] | str | Path, *arguments: str,
        workers: int | None = None, args: Sequence[object] = (), flags: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Cluster:  # fmt: skip
        """Start `luwu run` on a function, as fn(rank, *args), or on a script and its arguments.

        `flags`: more of `luwu run`, such as ("--restarts", "0"). A function runs where pytest does,
        a script in a directory of its own.
        """
        directory = self._record.folder("cluster")
        directory.mkdir()
        call = cwd = None
        if callable(target):
            call, cwd = write_call(directory / "call", target, args), Path.cwd()
            script = ["-m", "luwu.testing.worker", str(call)]
        else:
            script = [str(Path(target).absolute()), *arguments]
        count: int = _setting(self._request, "workers", workers)
        state = str(directory / "state")
        asked = ["--workers", str(count), "--state", state, *self.FLAGS, *flags]
        cluster = Cluster.run(directory, *script, flags=asked, environ=environ, cwd=cwd)
        cluster.call, cluster.workers = call, count
        self._clusters.append(cluster)
        return cluster

    def close(self) -> None:
        """End what still runs; nothing of it may be left."""
        for cluster in self._clusters:
            cluster.close()
            self._record.leaks += [*cluster.wait_until_clean(), *cluster.left_by_workers()]


class Runner:
    """`luwu_run`: a function in the workers of a `luwu run` of its own."""

    def __init__(self, request: pytest.FixtureRequest, clusters: ClusterFactory) -> None:
        self._request, self._clusters = request, clusters

    def __call__(
        self, fn: Callable[..., Any], *, workers: int | None = None, args: Sequence[object] = (),
        flags: Sequence[str] = (), timeout: float | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call fn(rank, *args) in each worker; what it returned, by rank.

        Raises: the first failure, with that worker's traceback in its message.
        """
        limit_s: float = _setting(self._request, "timeout", timeout)
        with self._clusters(fn, workers=workers, args=args, flags=flags) as cluster:
            return cluster.returned(limit_s)


def _setting(request: pytest.FixtureRequest, name: str, argument: Any = None) -> Any:
    """A setting of the test that uses a fixture."""
    return setting(request.config, name, argument, item=request.node)
