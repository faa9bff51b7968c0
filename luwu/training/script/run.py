"""`luwu.init`, `luwu.finish` and the session a script is in.

A session is current in the thread that called `init`; other threads of a process that has only one
see that one, until its NIC is closed. (Tests run several workers as threads of one process.)
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import threading
import weakref
from collections.abc import Callable, Mapping

import torch

from luwu.base.errors import ConfigError
from luwu.nic.shell import Nic
from luwu.training.devices.device import Device, device_at
from luwu.training.script.session import Session


class _Here(threading.local):
    """The session of the script that runs in this thread, and what it is made with."""

    session: Session | None = None
    """From `init` to `finish`."""
    offered: Nic | None = None
    after: Callable[[], object] | None = None
    """To be called when the session has finished."""


_here = _Here()
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
_sessions_lock = threading.Lock()


def init(
    agree: Mapping[str, str] | None = None, nic: Nic | None = None,
    device: torch.device | str | Device | None = None,
) -> Session:  # fmt: skip
    """Join the job that this process was started in; call it once, before `fully_shard`.

    `luwu run` and torchrun start the process with the variables that name the job. For one process
    alone, as in a notebook, call `luwu.init_local` instead.

    Args:
        agree: What else must be equal on all ranks, such as a digest of the data; a rank that
            differs is rejected when it joins.
        nic: For tests: join by this object instead of the environment.
        device: Device to compute on; by default the worker's GPU if there is one, else the CPU.

    Returns:
        The session, which scripts rarely need.

    Raises:
        ConfigError: If there is no job in the environment, or `init` was called before.
        ConnectionFailed: If the switch or node cannot be reached.

    Examples:
        In a script that `luwu run --workers 2 train.py` starts:

        >>> session = luwu.init(agree={"data": "sha256:9f86d081"})
        >>> print(f"worker {luwu.rank()} of {luwu.world_size()}")
        worker 0 of 1
    """
    if _here.session is not None:
        raise ConfigError("luwu.init() was called before; call it once, or luwu.finish() between")
    if isinstance(device, Device):
        where = device.where
    else:
        where = _local_device() if device is None else torch.device(device)
    nic = nic or _here.offered
    if nic is None:
        with contextlib.suppress(io.UnsupportedOperation, AttributeError, ValueError):
            faulthandler.enable()
        from luwu.join.open import open_nic  # a test with a NIC of its own needs no transport

        ranks = _environment("RANK"), _environment("WORLD_SIZE")
        nic = open_nic(*ranks, on_device=where.type == "cuda")
    if (shared := gpus_shared(where)) is not None:
        nic.recorder.event(
            "worker.shares_gpu", level="WARNING", rank=nic.rank, gpu=where.index,
            gpus_count=shared[0], workers_count=shared[1],
        )  # fmt: skip
    if not isinstance(device, Device):
        device = device_at(where)
    made = Session(nic, agree=agree or {}, device=device)
    _here.session = made
    with _sessions_lock:
        _sessions.add(made)
    return made


def offer(nic: Nic | None) -> None:
    """Let `init` in this thread join by this NIC, in place of the one that the environment names.

    So one function can be a worker in a process of its own, or in a thread of a test.
    """
    _here.offered = nic


def session() -> Session:
    """Return the current session: the object behind `init`, `rank` and `finish`.

    Returns:
        The session of this thread, or that of the process if it has only one.

    Raises:
        ConfigError: Before `init`.

    Examples:
        >>> started = luwu.init_local()
        >>> luwu.session() is started
        True
    """
    if _here.session is not None:
        return _here.session
    with _sessions_lock:
        running = [one for one in _sessions if not one.nic.is_closed]
    if len(running) != 1:
        raise ConfigError("call luwu.init() first")
    return running[0]


def finish() -> None:
    """Wait until the last step is decided, then leave the job.

    A script that ends without this call leaves the job at its end. Call it inside the loop that
    handles `StepAborted`, so that a lost last step is computed again.

    Raises:
        StepAborted: If a step was lost: go back to it, then call `finish` again.
        ConfigError: If no job has begun.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(8, 4)).sum().backward()
        >>> result = optimizer.step()
        >>> luwu.finish()
    """
    ending = session()
    ending.finish()
    if _here.session is ending:
        _here.session = None
    after, _here.after = _here.after, None
    if after is not None:
        after()


def when_finished(after: Callable[[], object]) -> None:
    """Call this when the session of this thread has finished."""
    _here.after = after


def finish_at_end() -> None:
    """`finish`, if the script has not: what `luwu run` does when a script has ended well."""
    if _here.session is not None and _here.session.is_final:
        finish()


def is_running() -> bool:
    """True if the script in this thread has called `init`, and not yet `finish`."""
    return _here.session is not None


def rank() -> int:
    """Return the number of this worker, from 0 to `world_size() - 1`.

    Raises:
        ConfigError: Before `init`.

    Examples:
        >>> session = luwu.init_local()
        >>> luwu.rank()
        0
    """
    return session().rank


def world_size() -> int:
    """Return the number of workers; switch and optimizer node do not count.

    Raises:
        ConfigError: Before `init`.

    Examples:
        >>> session = luwu.init_local()
        >>> luwu.world_size()
        1
    """
    return session().world_size


def device() -> torch.device:
    """Return the device of this worker: its GPU if there is one, else the CPU.

    Raises:
        ConfigError: Before `init`.

    Examples:
        >>> session = luwu.init_local(device="cpu")
        >>> batch = torch.zeros(8, 4, device=luwu.device())
        >>> batch.device
        device(type='cpu')
    """
    return session().device


def _environment(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        found = f"is {text!r}, which is not a number" if text else "is not set"
        raise ConfigError(
            "start this script with `luwu run SCRIPT`, or with torchrun and LUWU_CONNECT; a "
            f"single process calls luwu.init_local(). {name} {found} in the environment, so "
            "there is no job to join"
        )
    return int(text)


def _local_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def gpus_shared(device: torch.device) -> tuple[int, int] | None:
    """(GPUs, workers of this host) if there are more workers than GPUs, so that some share one.

    A process group over NCCL cannot be made there: it takes one rank of each GPU.
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    local_count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return (count, local_count) if 0 < count < local_count else None
