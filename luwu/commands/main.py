"""The `luwu` command: finds the verb, runs it, and turns errors into one message and an exit code.

    0 ok    2 bad configuration    3 cannot connect    4 a worker failed    5 state damaged

A verb's module is imported when it is called, so `luwu --help` loads little.
"""

from __future__ import annotations

import importlib
import keyword
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from luwu.base import own
from luwu.base.error_table import entry
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.expendable import print_if_possible
from luwu.base.libc import keep_one_arena
from luwu.base.refusals import DISK_FAULTS, refusal
from luwu.base.suggestion import suggestion
from luwu.commands import flags

VERBS: Final = {
    "compare": "train the built-in GPT with LuWu and with FSDP2, DDP or alone, and compare",
    "run": "start a training script, with a switch and an optimizer node",
    "up": "start a switch and an optimizer node, and wait for workers",
    "status": "what the processes of a run are doing",
    "estimate": "what a job would take here: memory, disk, time, and what binds",
    "predict": "how long a step takes on machines that are not here, and what binds",
    "plan": "the best configuration of a job on such machines",
    "doctor": "what this machine has and what is missing",
    "report": "make a run's report again",
    "trace": "make a run's timeline, or say how busy its engines were",
    "export": "write a state as safetensors: weights, optimizer, and what import needs",
    "import": "make a state from an export, or from weights in safetensors",
    "keys": "make and take back the keys of who may connect",
    "chaos": "kill and stall processes of a run on purpose, and see how it takes it",
    "explain": "what the code of an error means, and what to do next",
    "verify": "is a state whole? Which version, what is damaged, where",
    "snapshot": "a copy of a state that is itself one, while training goes on",
    "config": "show every key, its value and who set it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    if arguments is None:
        keep_one_arena()  # the process is ours
    for package in own.PACKAGES:
        own.take(package)
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if not tokens or tokens[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if tokens[0] == "--version":
        print(f"luwu {own.version()}")
        return 0
    name = tokens.pop(0)
    if name not in VERBS:
        said = f"no verb {name!r}{suggestion(name, VERBS)}\nthe verbs are {', '.join(VERBS)}"
        return _fail("luwu", ConfigError(f"{said}; luwu --help", code="E201"))
    return _run_verb(name, tokens)


def usage() -> str:
    """The text of `luwu --help`."""
    lines = ["usage: luwu VERB ...", ""]
    lines += [f"  {name:<9} {text}" for name, text in VERBS.items()]
    lines += ["", "luwu VERB --help tells more. Keys of the configuration: luwu config."]
    return "\n".join(lines)


def _run_verb(name: str, tokens: list[str]) -> int:
    is_debug = False
    try:
        file = f"{name}_" if keyword.iskeyword(name) else name
        module = importlib.import_module(f"luwu.commands.{file}")
        parsed = flags.parse(module.VERB, tokens)
        is_debug = parsed.has("debug")
        if parsed.has("help"):
            print(flags.help_text(module.VERB))
            return 0
        code: int = module.run(parsed)
        return code
    except LuwuError as error:
        if is_debug:
            traceback.print_exc()
        return _fail(f"luwu {name}", error)
    except KeyboardInterrupt:
        print(f"luwu {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has had enough
        return 0
    except OSError as error:
        if is_debug or error.errno not in DISK_FAULTS:
            raise
        refused = refusal("the system refused to work on a file", error, then="try again")
        return _fail(f"luwu {name}", refused)


def _fail(program: str, error: LuwuError) -> int:
    """Say what went wrong, and where more is told of it; the exit code."""
    title = entry(error.code).title
    print_if_possible(f"{program}: {error}")
    print_if_possible(f"{error.code}: {title}; more: luwu explain {error.code}")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
