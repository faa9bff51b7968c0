"""Steps that were announced as decided, and that the state of an optimizer node does not have.

What a state lacks is noticed by whoever knows better: the node by the Hello of its switch, a switch
by the Hello of its children, a worker by the answer to its own. They use the same words. Pure.
"""

from __future__ import annotations


def lost_steps_text(found: int, known: int) -> str:
    """Text about lost steps. `found`: decided steps in the state; `known`: steps announced as
    decided.
    """
    if known <= found:
        return (
            f"the state of the optimizer node has {found} decided steps, as announced, but is an "
            "older copy: its workers know of later events that it does not contain"
        )
    ends = f"ends with step {found - 1}" if found else "has no decided step"
    return (
        f"the state of the optimizer node {ends}, but step {known - 1} was announced as decided: "
        f"{_steps_text(found, known)} lost"
    )


def refusal_text(found: int, known: int) -> str:
    """The same, and what to do about it."""
    return (
        f"{lost_steps_text(found, known)}. It is an older copy of the state, or its disk lost data "
        "that it had confirmed. Put the newest state in the directory of --state and continue with "
        f"--resume; or, to recompute the steps from {found} on, start the job again on this state "
        "with --resume. Unless --durability is step, --on-lost-steps redo does that automatically"
    )


def _steps_text(found: int, known: int) -> str:
    return f"step {found} is" if known == found + 1 else f"steps {found} to {known - 1} are"
