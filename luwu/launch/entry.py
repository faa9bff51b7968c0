"""The program that is started per worker: runs the user's script, keeps output and errors.

    python -m luwu.launch.entry RUN_DIR PREFIX SCRIPT ...      or     ... PREFIX -m MODULE ...

Output of rank r goes to `logs/worker-r.log` (that of a worker that is shown by way of `relay`), its
process number to `roles/worker-r.json`, the number and time of its start to `roles/worker-r.start`,
and what ends it early, with the traceback, to `errors/worker-r.json`: the launcher shows the first
of them in full. The script runs as `__main__`, as if Python had started it directly. A signal to
stop (SIGTERM) ends it at once, after what its events hold in memory is written.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from luwu.base.clock import SYSTEM_CLOCK, new_incarnation, unix_ns, utc_text
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.events import flush_all
from luwu.base.json_file import read_json, remove_partial
from luwu.base.torch_import import expect_torch
from luwu.launch.processes.relay import stream_files
from luwu.launch.processes.run_directory import RUNNING, RunDirectory


def entry_arguments(run: RunDirectory, prefix: str, script: Sequence[str]) -> list[str]:
    """The arguments of Python for a worker: this module, and the script."""
    return ["-m", "luwu.launch.entry", str(run.path), prefix, *script]


def main(
    arguments: Sequence[str], *, before_script: Callable[[], object] = expect_torch
) -> None:  # fmt: skip
    """Run the script; ends as it ends. `before_script` is called right before it begins."""
    run = RunDirectory(Path(arguments[0]))
    prefix, script = arguments[1], list(arguments[2:])
    signal.signal(signal.SIGTERM, functools.partial(_stop, run))
    rank = int(os.environ.get("RANK") or 0)
    process = f"{prefix}worker-{rank}"
    _redirect_output(run, process)
    for stale in (run.error(process), run.role(f"{process}.ended")):
        stale.unlink(missing_ok=True)  # of an earlier start, which this one makes good
    os.environ["LUWU_INCARNATION"] = str(count_start(run, process))
    run.keep(run.role(f"{process}.json"), {"rank": rank, "pid": os.getpid(), "started": utc_text()})
    if "PYTHONBREAKPOINT" not in os.environ:  # another debugger may need no terminal
        sys.breakpointhook = _breakpoint
    before_script()
    with contextlib.suppress(OSError):  # on a full disk
        run.role(f"{process}{RUNNING}").touch()
    try:
        try:
            run_script(script)
        except SystemExit as exc:
            if _exit_code(exc):
                raise
        _finish()
    except SystemExit as exc:
        write_error(run, process, rank, exc, exit_code=_exit_code(exc))
        raise
    except BaseException as exc:
        code = exc.exit_code if isinstance(exc, LuwuError) else 1
        text = write_error(run, process, rank, exc, exit_code=code)
        print(text, file=sys.stderr, flush=True)
        sys.exit(code)
    finally:
        ended = {
            "rank": rank, "ended": utc_text(), "joined": _has_joined(), "threads": _threads(),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            run.role(f"{process}{RUNNING}").unlink()
        run.keep(run.role(f"{process}.ended"), ended)


def _stop(run: RunDirectory, number: int, frame: FrameType | None) -> None:
    """Write the events that wait in memory, remove the file that is being written, and end as the
    signal would have ended us."""
    flush_all()
    remove_partial(run.path, os.getpid())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _breakpoint(*_: object, **__: object) -> None:
    """Takes the place of breakpoint(), whose debugger would read the end of its input and quit."""
    raise ConfigError(
        "breakpoint(): a worker of luwu run has no terminal. Replace luwu.init() with "
        "luwu.init_local() and run the script with python (docs/training.md), or set "
        "PYTHONBREAKPOINT to a debugger that needs no terminal"
    )


def count_start(
    run: RunDirectory, process: str, now_ns: Callable[[], int] = unix_ns
) -> int:  # fmt: skip
    """The number of this start of a worker: larger than that of its last one on this host, even
    where the clock was set back since. When it was is kept beside it."""
    file = run.role(f"{process}.start")
    before = read_json(file) or {"incarnation": 0}
    incarnation = new_incarnation(before["incarnation"], now_ns)
    run.keep(file, {"incarnation": incarnation, "at_ns": SYSTEM_CLOCK.now_ns()})
    return incarnation


def run_script(script: Sequence[str]) -> None:
    """Run `SCRIPT ...` or `-m MODULE ...` as `__main__` in this process."""
    if script[0] == "-m":
        sys.argv = list(script[1:])
        sys.path[0] = os.getcwd()
        runpy.run_module(script[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(script)
        sys.path[0] = str(Path(script[0]).resolve().parent)
        runpy.run_path(script[0], run_name="__main__")


def _exit_code(error: SystemExit) -> int:
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def _finish() -> None:
    """Leave the run for a script that ended well and did not, or the others would wait for it."""
    training = sys.modules.get("luwu.training.script.run")  # not there in a script without luwu
    if training is not None:
        training.finish_at_end()


def _threads() -> list[str]:
    """Threads that Python waits for before this process ends. It ends those of executors that have
    nothing to do, as torch.compile leaves some."""
    codes = {at: frame.f_code for at, frame in sys._current_frames().items()}
    file = "concurrent/futures/thread.py"  # a thread that is busy is in a function further in
    idle = {k for k, c in codes.items() if c.co_name == "_worker" and c.co_filename.endswith(file)}
    ours = [each for each in threading.enumerate() if each is not threading.current_thread()]
    return [each.name for each in ours if not each.daemon and each.ident not in idle]


def _has_joined() -> bool:
    """True if the script was a member of the job."""
    shell = sys.modules.get("luwu.nic.shell")
    return shell is not None and bool(shell.Nic.has_joined)


def _redirect_output(run: RunDirectory, process: str) -> None:
    """Both streams to the log; each to a file of its own where a terminal follows them."""
    out, error = stream_files(run, process)
    if not out.exists():
        out = error = run.log(process)
    for stream, file in ((sys.stdout, out), (sys.stderr, error)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        stream.flush()
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def write_error(
    run: RunDirectory, process: str, rank: int, error: BaseException, *, exit_code: int
) -> str:
    """Keep what ended the script; its traceback, from the script on."""
    lines = traceback.format_exception(_without_launcher(error))
    text = "" if isinstance(error, SystemExit) else "".join(lines).rstrip()
    document = {
        "schema": 1,
        "role": "worker",
        "rank": rank,
        "pid": os.getpid(),
        "unix_ns": unix_ns(),
        "type": type(error).__name__,
        "message": str(error),
        "exit_code": exit_code,
        "code": error.code if isinstance(error, LuwuError) else None,
        "traceback": text,
    }
    run.keep(run.error(process), document)
    return text


def _without_launcher(error: BaseException) -> BaseException:
    """The error without the frames of this file, of imports, and any marked as hidden."""
    trace = error.__traceback__
    while trace is not None and _is_hidden(trace.tb_frame):
        trace = trace.tb_next
    if trace is None and not isinstance(error, LuwuError):
        return error  # a mistake of ours
    return error.with_traceback(trace)


def _is_hidden(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return (
        frame.f_code.co_filename == __file__
        or package in ("runpy", "importlib")
        or "__tracebackhide__" in {**frame.f_globals, **frame.f_locals}
    )


if __name__ == "__main__":
    main(sys.argv[1:])
