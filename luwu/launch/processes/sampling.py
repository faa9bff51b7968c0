"""Memory of the run's processes over time, seen from outside: peaks of `private_bytes`.

memory.json    {"schema": 1, "peak_bytes": {"node": 60928000, "worker-0": ...},
                "now_bytes": {...}, "peak_bytes_of_all": 569405440}
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from luwu.base.process_memory import private_bytes

SAMPLES_PER_S: Final = 10


class MemorySampler:
    """Samples the memory of given processes ten times a second, in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._peak_of_all = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="luwu-memory", daemon=True)
        self._thread.start()

    def watch(self, processes: Mapping[str, int]) -> None:
        """Sample these from now on, by name; a name keeps its peak over restarts."""
        with self._lock:
            self._pids = dict(processes)

    @property
    def peaks(self) -> dict[str, int]:
        """The largest sample of each name."""
        with self._lock:
            return dict(self._peaks)

    @property
    def peak_of_all(self) -> int:
        """The largest sum over all processes at one instant."""
        with self._lock:
            return self._peak_of_all

    def document(self) -> dict[str, Any]:
        """The peaks, and the last sample of each process that is alive."""
        with self._lock:
            return {
                "schema": 1, "peak_bytes": dict(self._peaks), "now_bytes": dict(self._now),
                "peak_bytes_of_all": self._peak_of_all,
            }  # fmt: skip

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()
        self._now = {}

    def _run(self) -> None:
        while not self._stop.wait(1 / SAMPLES_PER_S):
            with self._lock:
                pids = dict(self._pids)
            found = {name: private_bytes(pid) for name, pid in pids.items()}
            known = {name: count for name, count in found.items() if count is not None}
            with self._lock:
                self._now = known
                self._peak_of_all = max(self._peak_of_all, sum(known.values()))
                for name, count in known.items():
                    self._peaks[name] = max(count, self._peaks.get(name, 0))
