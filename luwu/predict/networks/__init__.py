"""Networks, and the share of them that an exchange has.

choice.py       `[topology]` of a question
topologies.py   what a group of ranks has of a network of each kind, by closed forms
on_topology.py  a job on a network that is known link by link
"""
