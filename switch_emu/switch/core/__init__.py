"""The switch as a pure state machine: `SwitchCore`.

    switch.py            SwitchCore: which part handles which message, and what concerns all parts
    actions.py           what the core asks of its shell, and what it may hold

    membership.py        joining, leaving, which children are present and count in an attempt
    attempts.py          the request to give an attempt up
    parents.py           several optimizer nodes: which messages concern which of them; this, to
                         `refusals.py`, only where there are several
    lead.py              E1 to E8: attempts, verdicts and decisions of several nodes; who counts
    standings.py         the position of each of them; ballot.py what they state of a version
    filling.py           pages for a node that does not count
    refusals.py          what nodes that cannot take part are sent
    readers.py           requests of readers, up and back

    aggregation.py       pushes in slots: one sum of each goes up; what waits, or goes up raw
    slots.py             S1 to S5; the pool of functional fidelity
    fixed_slots.py       F1 to F5; the pool of protocol fidelity

    statements.py        N statements of a step, or of an extent, become one; who is late
    weights_down.py      one pull to the parent, one copy of the weights to each child
    attachments.py       initial weights, and what a worker wants beside a version, up

Every part is handed the outbox (`luwu.protocol.outbox`), and what else it needs; none inherits.
"""

from switch_emu.switch.core.switch import SwitchCore

__all__ = ["SwitchCore"]
