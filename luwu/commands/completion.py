"""`luwu completion bash|zsh|fish`: a script by which a shell asks this program for completions.

It calls `luwu` with a variable that says what was typed; click answers with commands, flags, words
of values that have a list of them, and where a file is wanted with the order to complete files.
"""

from __future__ import annotations

import click
from click.shell_completion import shell_complete

from luwu.base.parsers import one_of
from luwu.commands import form
from luwu.commands.table import COMPLETION

SHELLS = ("bash", "zsh", "fish")


@form.command(
    "completion",
    'eval "$(luwu completion bash)"    # or in ~/.bashrc',
    "luwu completion fish > ~/.config/fish/completions/luwu.fish",
)
@click.argument("shell", type=form.Value("|".join(SHELLS), one_of(*SHELLS)))
def run(shell: str) -> int:
    """Print a script that completes the commands and flags of luwu in a shell."""
    return shell_complete(form.LUWU, {}, "luwu", COMPLETION, f"{shell}_source")


def answer(instruction: str) -> int:
    """Print the completions of what a shell says was typed; the exit code."""
    return shell_complete(form.LUWU, {}, "luwu", COMPLETION, instruction)
