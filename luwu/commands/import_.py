"""`luwu import`: a state directory from an export."""

from __future__ import annotations

from pathlib import Path

import click

from luwu.base.parsers import path
from luwu.base.quantities import exact_size, format_bytes
from luwu.commands import form
from luwu.commands.export import SIZE
from luwu.launch.processes.stopping import stop_requests


@form.command("import", "luwu import gpt-export --state gpt-state")
@click.argument("source", type=form.Value("SRC_DIR", path))
@click.option(
    "--state", type=form.Value("DIR", path), required=True, help="state directory to create"
)
@click.option("--chunk", type=SIZE, help="chunk size (default: as exported)")
@click.option("--memory-budget", type=SIZE, help="memory for buffers (default: 256MiB)")
@form.JSON
def run(
    source: Path, state: Path, chunk: int | None, memory_budget: int | None, as_json: bool
) -> int:  # fmt: skip
    """Create the state directory DIR from SRC_DIR, which luwu export wrote; training continues at
    its step, with any number of workers."""
    from luwu.checkpoint.import_state import import_state

    with stop_requests() as should_stop:
        found = import_state(
            source, state, chunk_bytes=chunk, memory_budget_bytes=memory_budget,
            should_stop=should_stop,
        )  # fmt: skip
    document = {
        "schema": 1,
        "state": str(found.path),
        "step": found.step,
        "weights_digest": found.weights_digest,
        "chunk_bytes": found.chunk_bytes,
        "bytes": found.nbytes,
        "seconds": found.seconds,
    }
    rate = format_bytes(found.nbytes / max(found.seconds, 1e-9))
    text = (
        f"{found.path}: step {found.step}, {format_bytes(found.nbytes)} of state, chunk "
        f"{exact_size(found.chunk_bytes)}, {found.seconds:.1f} s ({rate}/s)\n"
        f"weights digest {found.weights_digest}\n"
        f"go on with luwu run --state {found.path} --resume ..."
    )
    return form.show(document, text, as_json=as_json)
