"""The switch as a pure state machine: `SwitchCore`.

    switch.py            SwitchCore: which part handles which message, and what concerns all parts
    actions.py           what the core asks of its shell, and what it may hold

    membership.py        joining, leaving, which children count in an attempt
    presence.py          which ranks are present, where a job goes on without lost ones
    attempts.py          the request to give an attempt up
    parents.py           several optimizer nodes: which messages concern which of them; this, to
                         `refusals.py`, and `joint_readers.py` only where there are several
    lead.py              E1 to E8: attempts, verdicts and decisions of several nodes; who counts
    standings.py         where each of them stands; ballot.py what they state of a version
    filling.py           pages for a node that does not count; filled_node.py how far it is
    refusals.py          what nodes that cannot take part are told
    reader_routes.py     requests of readers, up and back; joint_readers.py of several nodes

    aggregation.py       pushes in slots: contributions meet, one sum goes up
    slots.py             S1 to S5; the pool of functional fidelity
    fixed_slots.py       F1 to F5; the pool of protocol fidelity
    pool.py              what both pools can do
    resources.py         what the fixed slots would take of a real switch
    waiting.py           contributions that wait for a slot
    raw_up.py            contributions that find no slot

    begin_commit.py      N statements of a step become one; verdict and decision go back
    lateness.py          who is late with a step
    agreement.py         what is agreed on about an extent before it is pushed
    weights_down.py      one pull to the parent, one copy of the weights to each child
    weights_cache.py     weights that all pulls of a step but the first are answered with
    initial_weights.py   before step 0, up
    attachments.py       what a worker wants beside a version of the state, up

Every part is handed the outbox (`luwu.protocol.outbox`), and what else it needs; none inherits.
"""

from switch_emu.switch.core.switch import SwitchCore

__all__ = ["SwitchCore"]
