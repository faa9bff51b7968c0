"""`luwu.init_local`: a job of one worker in this process, for a REPL, a notebook or a debugger.

Switch and node run in threads beside the script; no process is started and no port is opened.
`luwu.finish()` ends the job; then the next `init_local` begins another one.
"""

from __future__ import annotations

import atexit
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.quantities import parse_bytes
from luwu.launch.local_cluster import LocalCluster
from luwu.launch.serving import decide_sizes

if TYPE_CHECKING:
    import torch

    from luwu.training.script.session import Session

_running: list[LocalCluster] = []


def init_local(
    state: str | Path | None = None, *, memory_budget: str | int | None = None,
    device: torch.device | str | None = None,
) -> Session:  # fmt: skip
    """Begin a job of this process alone, in place of `luwu.init`.

    Switch and node run in threads of this process; no process is started and no port is opened. For
    a REPL, a notebook or a debugger. `luwu.finish()` ends the job; then another may begin.

    Args:
        state: Directory of the training state, which the job resumes if it exists. By default the
            state is in RAM and lost at the end.
        memory_budget: Memory of the node, in bytes or as text such as `"256MiB"`; by default half
            of the free memory.
        device: Device to compute on; by default the GPU if there is one, else the CPU.

    Returns:
        The session, which scripts rarely need.

    Raises:
        ConfigError: If another job of this process is running, or an argument cannot work.
        StateError: If the state directory is damaged.

    Examples:
        >>> session = luwu.init_local("my-state", memory_budget="64MiB")
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> for step in range(optimizer.next_step, 3):
        ...     model(torch.ones(8, 4)).square().mean().backward()
        ...     result = optimizer.step()
        ...     optimizer.zero_grad()
        >>> luwu.finish()  # the next init_local("my-state") goes on with step 3
    """
    from luwu.training.script import run

    if run.is_running():
        raise ConfigError("a job of this process runs already; call luwu.finish() first")
    close()
    if isinstance(memory_budget, str):
        memory_budget = parse_bytes(memory_budget, name="memory_budget")
    path = None if state is None else Path(state)
    sizes = decide_sizes(RunConfig(workers=1, memory_budget=memory_budget), path)
    cluster = LocalCluster(
        world_size=1, state=path, memory_budget_bytes=sizes.memory_budget_bytes,
        chunk_bytes=sizes.chunk_bytes, extent_chunks=sizes.extent_chunks, resume=True,
        summary=Path(tempfile.gettempdir()), on_error=_say, printed=sys.stderr,
    )  # fmt: skip
    try:
        session = run.init(nic=cluster.nic(0), device=device)
    except BaseException:
        cluster.close()
        raise
    _running.append(cluster)
    run.when_finished(close)
    return session


def close() -> None:
    """Stop what is left of a job that is over, or that nobody ended."""
    while _running:
        _running.pop().close()


@atexit.register
def _end() -> None:
    """A script that ends without luwu.finish() has its last step decided all the same."""
    if not _running:
        return
    from luwu.training.script import run

    try:
        run.finish_at_end()
    except LuwuError as error:
        _say(error)
    close()


def _say(error: BaseException) -> None:
    print(f"luwu: the job of this process has failed: {error}", file=sys.stderr, flush=True)
