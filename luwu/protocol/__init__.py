"""Common parts of the cores of worker, switch and node: pure, without I/O.

outbox.py        the outbox of a core: its position, and the actions it has collected
actions.py       actions that every core may ask of its shell
children.py      the children of a switch or a node, outcomes of their last steps, and answers
                 to those that are behind
uplink.py        requests that are repeated until answered; to the parent, payloads within a window
contribution.py  contributions to an extent: their form, their ranks, the order of their sum
counted_ranks.py ranks that are lost or back: others count in the next attempt
epoch.py         the optimizer nodes that count, where there are several
"""
