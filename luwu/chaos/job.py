"""The job that faults are planned for: its processes, and what its configuration promises."""

from __future__ import annotations

from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError
from luwu.base.json_file import read_json
from luwu.chaos.outlook import Rules
from luwu.chaos.plan import Cast
from luwu.launch.hosts.nodes import node_role
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import STATE_DIRECTORY, state_directory, tree_of
from luwu.launch.worker_loss import worker_restarts


def config_of(run: RunDirectory) -> RunConfig:
    """The configuration of a run. Raises ConfigError."""
    names = ("resolved.json", "resolved-node.json")
    document = next((each for name in names if (each := read_json(run.file(name)))), None)
    if document is None:
        raise ConfigError(f"{run.path} does not say what its run was asked to do", code="E202")
    values = {
        name: KEYS[name].parse(entry["value"], f"{run.path}: {name}")
        for name, entry in document["keys"].items()
        if name in KEYS and entry["value"] is not None
    }
    return RunConfig(**values)


def cast_of(config: RunConfig) -> Cast:
    """The processes of a job by name."""
    switches = () if config.no_switch else tuple(place.process for place in tree_of(config))
    return Cast(
        workers=tuple(f"worker-{rank}" for rank in range(config.workers)),
        switches=switches,
        nodes=tuple(node_role(number) for number in range(config.optimizer_nodes)),
    )


def rules_of(config: RunConfig) -> Rules:
    """The part of a configuration that decides how faults are handled."""
    return Rules(
        workers=config.workers,
        workers_min=config.workers_min,
        restarts=config.restarts,
        worker_restarts=worker_restarts(config),
        on_worker_loss=config.on_worker_loss,
        keeps_state=state_directory(config, STATE_DIRECTORY) is not None,
        grace_ns=int(config.grace * 1e9),
    )
