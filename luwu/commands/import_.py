"""`luwu import`: a state directory from an export, or from weights in safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.quantities import exact_size, format_bytes
from luwu.commands.export import size_of
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.launch.processes.stopping import stop_requests

VERB: Final = Verb(
    name="import",
    usage="luwu import SRC --state DIR [flags]",
    text=(
        "Create the state directory DIR from SRC, a directory that luwu export wrote; training "
        "continues at its step, with any number of workers. With --like, SRC may hold any weights "
        "in safetensors (in Hugging Face's layout); training starts with them at step 0."
    ),
    examples=(
        "luwu import gpt-export --state gpt-state",
        "luwu import hub-model --state tuned-state --like luwu-state",
    ),
    flags=(
        Flag(name="state", shape="DIR", text="state directory to create"),
        Flag(name="like", shape="DIR", text="state or export of the same model"),
        Flag(name="chunk", shape="SIZE", text="chunk size (default: as exported)"),
        Flag(name="memory_budget", shape="SIZE", text="memory for buffers (default: 256MiB)"),
        Flag(name="json", text="print JSON"),
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    values = parsed.flags
    if not parsed.rest or "state" not in values:
        raise ConfigError(f"name a directory and the state to make; usage: {VERB.usage_text}")
    from luwu.checkpoint.import_state import ImportOptions, import_state

    options = ImportOptions(
        chunk_bytes=size_of(values, "chunk", 0) if "chunk" in values else None,
        memory_budget_bytes=size_of(values, "memory_budget", ImportOptions().memory_budget_bytes),
    )
    with stop_requests() as should_stop:
        found = import_state(
            Path(parsed.rest[0]),
            Path(values["state"]),
            options,
            like=Path(values["like"]) if "like" in values else None,
            should_stop=should_stop,
        )
    if parsed.has("json"):
        document = {
            "schema": 1,
            "state": str(found.path),
            "step": found.step,
            "weights_digest": found.weights_digest,
            "chunk_bytes": found.chunk_bytes,
            "bytes": found.nbytes,
            "seconds": found.seconds,
        }
        print(json.dumps(document, indent=1))
        return 0
    rate = format_bytes(found.nbytes / max(found.seconds, 1e-9))
    print(
        f"{found.path}: step {found.step}, {format_bytes(found.nbytes)} of state, chunk "
        f"{exact_size(found.chunk_bytes)}, {found.seconds:.1f} s ({rate}/s)"
    )
    print(f"weights digest {found.weights_digest}")
    print(f"go on with luwu run --state {found.path} --resume ...")
    return 0
