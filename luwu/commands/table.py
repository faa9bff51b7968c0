"""The commands by what they are for, and the form of each command line."""

from __future__ import annotations

import importlib
import keyword
from types import ModuleType
from typing import Final

GROUPS: Final = {
    "Train": {
        "run": "start a training script, with a switch and an optimizer node",
        "compare": "train the built-in GPT in several ways, such as LuWu and FSDP2",
        "up": "start a switch and an optimizer node, and wait for workers",
    },
    "Look": {
        "status": "show the processes of a run and its progress",
        "report": "write the report of a run again",
        "trace": "write the timeline of a run",
        "explain": "explain an error code, and what to do next",
        "config": "list all keys with their values and origins",
    },
    "Plan": {
        "estimate": "estimate memory, disk and bytes of a job before it runs",
        "predict": "predict the step time of a job on hardware you do not have",
        "plan": "search the best configuration of a job on such hardware",
    },
    "State": {
        "export": "write a training state as safetensors",
        "import": "make a training state from an export",
        "snapshot": "copy a training state while training continues",
        "refill": "make a lost node's directory again, from the replicas of its pages",
        "verify": "check a training state for damage",
    },
    "Operate": {"keys": "create and revoke the keys of processes that may connect"},
}
VERBS: Final = {name: text for group in GROUPS.values() for name, text in group.items()}


def module_of(name: str) -> ModuleType:
    """The module of a command, whose `run` it is; imported when it is needed, so `luwu --help`
    loads little."""
    return importlib.import_module(f"luwu.commands.{name}{'_' * keyword.iskeyword(name)}")


def overview() -> str:
    """The text of `luwu --help`, at most 80 columns wide."""
    lines = [
        "Usage: luwu COMMAND ...",
        "",
        "Train PyTorch models with the optimizer outside the workers: a switch sums the",
        "gradients, an optimizer node keeps weights and optimizer state.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<10}  {text}" for name, text in commands.items())]
    lines += [
        "",
        "luwu COMMAND --help describes a command. luwu config lists all keys, which can",
        "be set by flags, by a TOML file and by the environment. luwu --version.",
    ]
    return "\n".join(lines)
