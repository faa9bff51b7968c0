"""`luwu plan`: the best configuration of a job on machines that are not here.

luwu plan FILE.toml [--json] [--catalogue FILE]      its form: luwu/predict/plan/planner.py,
and of inference luwu/predict/plan/planner_inference.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import CATALOGUE_FLAG, JSON_FLAG, Parsed, Verb
from luwu.predict.ask.question import read_table
from luwu.predict.hardware.catalogue import load
from luwu.predict.plan.plan_text import plan_document, plan_text
from luwu.predict.plan.planner import plan
from luwu.predict.plan.planner_inference import plan_inference
from luwu.predict.plan.planner_inference_space import is_of_inference

VERB: Final = Verb(
    name="plan",
    usage="luwu plan FILE.toml [--json] [--catalogue FILE]",
    text=(
        "Search the best configurations of a job on hardware you do not have: systems, networks, "
        "degrees of parallelism, micro-batches and recomputation. Show those that no other "
        "beats in speed, free memory, cost and power, and the number of tokens that hides "
        "communication. For inference: ranks, replicas, batches and precisions, by rate, latency "
        "and cost. docs/predict.md describes FILE."
    ),
    examples=("luwu plan llama.toml", "luwu plan llama.toml --catalogue ours.toml --json"),
    flags=(JSON_FLAG, CATALOGUE_FLAG),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    if not parsed.rest:
        raise ConfigError(f"which file? usage: {VERB.usage_text}")
    own = parsed.flags.get("catalogue")
    table = read_table(Path(parsed.rest[0]))
    catalogue = load(*([Path(own)] if own else []))
    search = plan_inference if is_of_inference(table) else plan
    found = search(table, catalogue)
    as_json = parsed.has("json")
    print(json.dumps(plan_document(found), indent=1) if as_json else plan_text(found))
    return 0
