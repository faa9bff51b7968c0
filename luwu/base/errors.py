"""The errors users and shells see, by whose fault they are.

    ConfigError           the user's input, found before anything starts       exit code 2
    ConnectionFailed      a peer cannot be reached or refused us for good      exit code 3
      AccessRefused       somebody without the right key was not let in
      KeysFailed          nobody can say any more who may connect; we stop
    WorkerFailed          a worker process ended with an error                 exit code 4
    StateError            the state directory is unusable; the node stops      exit code 5
      PageCorruptError    bytes on disk are not those that were written
      DamagedFileError    a file to import is not what it should be
      StoreFullError      no room for what must be written
      OlderStateError     the state lacks steps that were announced as decided
    RemoteProtocolError   a peer broke the protocol: refuse the peer, our state is untouched
    StepAborted           a step was lost before it was decided: go back and replay it
      StepsLost           decided steps are lost, and the operator lets the job make them again
    StepOrderError        the script asked for what the chosen order of work cannot honour
    Interrupted           somebody asked us to stop                            exit code 130
    DeadlineError         a wait came to its end; says what it waited for

Every message names the peer or place, what was found, what was expected and what to do next. Every
error has a code, that of its class unless its cause needs other advice: `raise ConfigError("...",
code="E202")`. The command prints it, the run's records keep it, and `luwu explain E202` tells more
(`error_table.py`).

Errors that scripts and tests catch have the `__module__` of their public name, which Python prints.
"""

from __future__ import annotations

from typing import Final

STOPPED_CODE: Final = 143
"""Exit code of a process that a signal stopped before its job was over: 128 + SIGTERM."""


class LuwuError(Exception):
    """Base of every error this project raises on purpose."""

    __module__ = "luwu"
    exit_code = 1
    code = "E100"
    """For `luwu explain`; never given to another meaning."""

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code


class ConfigError(LuwuError):
    """The user's input cannot work; raised before anything starts."""

    __module__ = "luwu"
    exit_code = 2
    code = "E200"


class ConnectionFailed(LuwuError):
    """A peer cannot be reached, or has rejected this process for good."""

    exit_code = 3
    code = "E300"


class AccessRefused(ConnectionFailed):
    """Somebody without the right key, or with too many connections, was not let in."""

    code = "E306"


class KeysFailed(ConnectionFailed):
    """The check of keys does not work any more: the process stops rather than admit anybody."""

    code = "E307"


class RemoteProtocolError(LuwuError):
    """A peer sent what the protocol does not allow; our own state is untouched."""

    exit_code = 3
    code = "E302"


class WorkerFailed(LuwuError):
    """A worker process ended with an error."""

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
    """A wait came to its end; the message says what it waited for."""

    __module__ = "luwu.testing"
    exit_code = 3
    code = "E303"


class Interrupted(LuwuError):
    """Somebody asked us to stop."""

    exit_code = 130
    code = "E130"


class StepOrderError(LuwuError):
    """The script asked for something the chosen order of work cannot honour."""

    __module__ = "luwu"
    code = "E101"


class StepAborted(LuwuError):
    """A step was lost before it was decided; the state is that of the step before it."""

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


class StepsLost(StepAborted):
    """Decided steps are lost: the node came back with an older state, and `--on-lost-steps redo`
    lets the job make them again. The weights, and what was attached, are those before `step`."""

    __module__ = "luwu"
    code = "E107"

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(step, reason)
        self.args = (f"{reason}; they are made again. Go back to step {step}.",)
