"""A question as users write it: a TOML file, or a table, made into what is predicted.

    system = "luwu"              one of SYSTEMS
    model = "GPT-175B"           names of the catalogue
    device = "A100-40"
    network = "roce-100g"
    software = "megatron-2023"
    devices = 8
    sequence = 2048
    batch = 64
    micro_batch = 8
    recompute = "full"

Which keys there are depends on the system: `data/question_keys.toml` lists them. `[topology]` and
`[cost]` go with all systems: `networks/choice.py`, `question_cost.py`. A key that is unknown, that
belongs to another system, or that is missing is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from luwu.base.foreign import read_toml
from luwu.predict.ask.question_cost import make_costs
from luwu.predict.ask.question_inference import InferenceQuestion, make_inference_question
from luwu.predict.ask.question_keys import system_of
from luwu.predict.ask.question_sockets import SocketQuestion, make_socket_question
from luwu.predict.ask.question_training import Question, make_training_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import SHARED, optional_section_of
from luwu.predict.hardware.model_config import CONFIG_SUFFIX
from luwu.predict.networks.choice import make_topology

AnyQuestion: TypeAlias = Question | InferenceQuestion | SocketQuestion


def read_table(path: Path) -> dict[str, Any]:
    """A TOML file of a user; the `config.json` of a model is found from its place. Raises
    ConfigError."""
    table = read_toml(path, "question")
    model = table.get("model")
    if isinstance(model, str) and model.endswith(CONFIG_SUFFIX):
        table["model"] = str(path.parent / model)
    return table


def make_question(table: Mapping[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """A question of a table. Raises ConfigError, which names the key."""
    system = system_of(table)
    own = {key: value for key, value in table.items() if key not in SHARED}
    network, spent = (optional_section_of(table, key) for key in SHARED)
    topology = None if network is None else make_topology(network)
    costs = None if spent is None else make_costs(spent, catalogue)
    make: Callable[..., AnyQuestion] = {
        "inference": make_inference_question, "inference-sockets": make_socket_question,
    }.get(system, make_training_question)  # fmt: skip
    return make(own, catalogue, topology=topology, costs=costs)
