"""Networks, and the share of them that an exchange has.

choice.py             `[topology]` of a question
topologies.py         a group of ranks that exchange over a network; Clos and rail-only networks
direct_topologies.py  torus and dragonfly, by closed forms
on_topology.py        a job on a network that is known link by link
"""
