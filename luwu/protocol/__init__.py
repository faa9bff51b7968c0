"""Common parts of the cores of worker, switch and node: pure, without I/O.

outbox.py        the outbox of a core: its position, and the actions it has collected
actions.py       actions that every core may ask of its shell
children.py      the children of a switch or a node, outcomes of their last steps, and answers
                 to those that are behind
members.py       membership: every rank claimed once, all with the same job; decided steps that
                 a state lacks
uplink.py        requests to the parent: repeated until answered, payloads within a window
contribution.py  contributions to an extent, with the set of their ranks
push_form.py     checks of a push, so that only what fits is summed
sum_order.py     the order of a float32 sum in a tree of switches
counted_ranks.py ranks that are lost or back: others count in the next attempt
epoch.py         the optimizer nodes that count, where there are several
"""
