"""The errors users and shells see, by whose fault they are.

    ConfigError           the user's input, found before anything starts       exit code 2
    ConnectionFailed      a peer cannot be reached or refused us for good      exit code 3
      AccessRefused       a process without the right key was not let in
      KeysFailed          it is unknown who may connect; we stop
    WorkerFailed          a worker process ended with an error                 exit code 4
    StateError            the state directory is unusable; the node stops      exit code 5
      PageCorruptError    bytes on disk are not those that were written
      DamagedFileError    a file to import is not what it should be
      StoreFullError      no room for what must be written
      OlderStateError     the state lacks steps that were announced as decided
    RemoteProtocolError   a peer broke the protocol: refuse the peer, our state is untouched
    StepAborted           a step was lost before it was decided: go back and replay it
    StepOrderError        the script asked for what the chosen order of work cannot honour
    Interrupted           a signal asked us to stop                            exit code 130
    DeadlineError         a wait came to its end; says what it waited for

Every message names the peer or place, what was found, what was expected and what to do next. Every
error has a code, that of its class unless its cause needs other advice: `raise ConfigError("...",
code="E202")`. The command prints it, the run's records keep it, and `luwu explain E202` tells more
(`error_table.toml`).

Errors that scripts and tests catch have the `__module__` of their public name, which Python prints.

What the system refuses is an error of ours by `refusal`: the place, the system's reason, what to
do. A write or a flush that failed is never tried again: a second flush may succeed although the
first has lost the data. So each of these errors stops the node (exit code 5), and nothing of the
step that was being made counts.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

STOPPED_CODE: Final = 143
"""Exit code of a process that a signal stopped before its job was over: 128 + SIGTERM."""
STOP_SIGNALS: Final = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGXCPU,
)  # fmt: skip
"""Signals by which people, terminals and batch systems ask a command to stop."""


class LuwuError(Exception):
    """Base class of all errors that LuWu raises on purpose.

    The message states the place, what was found, what was expected and what to do next. A command
    that fails with one of these errors ends with its exit code.

    Attributes:
        code: Code of the error, such as `"E200"`; `luwu explain E200` explains it.
        exit_code: Exit code of a command that fails with this error, from 1 to 130.

    Examples:
        >>> try:
        ...     luwu.rank()  # no job has begun in this process
        ... except luwu.LuwuError as error:
        ...     print(error.code, error.exit_code, error)
        E200 2 call luwu.init() first
    """

    __module__ = "luwu"
    exit_code = 1
    code = "E100"
    """The code for `luwu explain`; never given to another meaning."""

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code


class ConfigError(LuwuError):
    """Arguments or settings that cannot work; raised before anything starts.

    Attributes:
        code: `"E200"`, or a code of its own where the cause needs other advice.
        exit_code: 2.

    Examples:
        >>> try:
        ...     luwu.init_local(memory_budget="12 parsecs")
        ... except luwu.ConfigError as error:
        ...     print(error.exit_code)
        2
    """

    __module__ = "luwu"
    exit_code = 2
    code = "E200"


class ConnectionFailed(LuwuError):
    """A peer cannot be reached, or has rejected this process for good."""

    exit_code = 3
    code = "E300"


class AccessRefused(ConnectionFailed):
    """A process without the right key, or with too many connections, was not let in."""

    code = "E306"


class KeysFailed(ConnectionFailed):
    """The check of keys does not work any more: the process stops rather than admit anybody."""

    code = "E307"


class RemoteProtocolError(LuwuError):
    """A peer sent what the protocol does not allow; our own state is untouched."""

    exit_code = 3
    code = "E302"


class WorkerFailed(LuwuError):
    """A worker process ended with an error; the message has its traceback.

    `luwu_run` raises it for the first worker that failed.

    Attributes:
        code: `"E400"`.
        exit_code: 4.

    Examples:
        ```python
        import pytest

        from luwu.testing import WorkerFailed


        def broken(rank):
            raise ValueError("bad batch")


        def test_a_bad_batch_is_reported(luwu_run):
            with pytest.raises(WorkerFailed, match="ValueError: bad batch"):
                luwu_run(broken, workers=1)
        ```
    """

    __module__ = "luwu.testing"
    exit_code = 4
    code = "E400"


class StateError(LuwuError):
    """The state directory cannot be used."""

    exit_code = 5
    code = "E500"


class PageCorruptError(StateError):
    """A page, or the manifest that names it, is not what was written."""

    code = "E501"


class DamagedFileError(StateError):
    """A file to import is damaged, or is not what its name says."""

    code = "E504"


class StoreFullError(StateError):
    """The disk has no room for what must be written."""

    code = "E502"


class OlderStateError(StateError):
    """The state lacks steps that were announced as decided."""

    code = "E508"


class DeadlineError(LuwuError):
    """A wait reached its time limit; the message states what it waited for.

    Attributes:
        code: `"E303"`.
        exit_code: 3.

    Examples:
        ```python
        import threading

        import pytest

        from luwu.testing import DeadlineError


        def hangs(rank):
            threading.Event().wait()


        def test_a_loop_that_hangs_is_found(luwu_run):
            with pytest.raises(DeadlineError):
                luwu_run(hangs, workers=1, timeout=1.0)
        ```
    """

    __module__ = "luwu.testing"
    exit_code = 3
    code = "E303"


class Interrupted(LuwuError):
    """A signal, or the user, asked us to stop."""

    exit_code = 130
    code = "E130"


class StepOrderError(LuwuError):
    """A call that this step cannot honour any more, or that its order of work excludes.

    For example, `update="streaming"` applies each gradient as soon as it is complete, so a call
    that comes after the backward cannot clip it: `max_grad_norm` of the optimizer does.

    Attributes:
        code: `"E101"`.
        exit_code: 1.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), update="streaming")
        >>> try:
        ...     luwu.clip_grad_norm_(model.parameters(), 1.0)
        ... except luwu.StepOrderError as error:
        ...     print(error.code)
        E101
    """

    __module__ = "luwu"
    code = "E101"


class StepAborted(LuwuError):
    """A step was lost before it was decided: go back to `step` and compute it again.

    Weights, optimizer state and attachments are those before that step. Any call of a step may
    raise this error, since losses are noticed while others work: put the whole step in the `try`.

    Attributes:
        step: Number of the first undecided step, from 0: the step to compute next.
        reason: What was lost, as text.
        code: `"E102"`.
        exit_code: 1.

    Examples:
        Dropping a gradient that was pushed already loses the step on purpose:

        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        >>> step, was_dropped = optimizer.next_step, False
        >>> while step < 3:
        ...     try:
        ...         model(torch.ones(8, 4)).square().mean().backward()
        ...         if step == 1 and not was_dropped:
        ...             was_dropped = True
        ...             optimizer.zero_grad()
        ...         else:
        ...             result = optimizer.step()
        ...             step += 1
        ...     except luwu.StepAborted as error:
        ...         print("again from step", error.step)
        ...         step = error.step
        again from step 1
    """

    __module__ = "luwu"
    code = "E102"

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(
            f"step {step} was lost before it was decided ({reason}); the weights are those of "
            f"{step} decided steps. Go back to step {step} and replay it."
        )
        self.step = step
        """The first undecided step: where the training loop must go on."""
        self.reason = reason


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for a misspelt name, or nothing; whatever its case."""
    import difflib  # few processes need it

    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or a quota."""
DISK_FAULTS = (*NO_ROOM, errno.EFBIG, errno.EACCES, errno.EIO, errno.EROFS)
"""Errors that a restart would not mend."""


def refusal(
    what: str, error: OSError, consequence: str = "", *, then: str = "start the node again"
) -> StateError:
    """The error for `what` the system refused; StoreFullError where there is no room.

    `consequence`: a sentence on what that means, with a space behind it; `then`: what to do when
    the disk is right again.
    """
    if error.errno in NO_ROOM:
        return StoreFullError(f"{what}: {error}. {consequence}Free some space and {then}.")
    if error.errno in (errno.EACCES, errno.EPERM):
        advice = f"The user of this process (uid {os.geteuid()}) may not do it: change the owner or"
        advice += " mode of the place (chown, chmod), or name another,"
        return StateError(f"{what}: {error}. {consequence}{advice} and {then}.", code="E514")
    if error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        advice = "Its file system takes no file of this size: name a place on another"
        if limit != resource.RLIM_INFINITY:
            advice = f"No file may be larger than {limit} bytes here: raise this limit (ulimit -f)"
        return StoreFullError(f"{what}: {error}. {consequence}{advice} and {then}.", code="E514")
    return StateError(f"{what}: {error}. {consequence}Put the disk right and {then}.", code="E505")


@contextmanager
def refusing(what: str, consequence: str = "") -> Iterator[None]:
    """Raises StateError or StoreFullError for what the system refuses in here."""
    try:
        yield
    except OSError as exc:
        raise refusal(what, exc, consequence) from exc


TABLE: Final = Path(__file__).with_name("error_table.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The meaning of one code."""

    code: str
    title: str
    meaning: str
    causes: list[str]
    next: list[str]


@cache
def entries() -> dict[str, Entry]:
    """The meaning of each code, in the order of the file: for `luwu explain`, docs/errors.md."""
    import tomllib  # few processes explain

    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {code: Entry(code=code, **row) for code, row in document.items()}


def entry(code: str) -> Entry:
    """The entry of a code, however it is written. Raises ConfigError."""
    known = entries()
    found = known.get(code.strip().upper())
    if found is None:
        close = suggestion(code.strip().upper(), known)
        raise ConfigError(
            f"no error has the code {code!r}{close or '; luwu explain lists all'}", code="E201"
        )
    return found
