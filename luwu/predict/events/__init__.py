"""The event core: what closed forms get wrong, played through in virtual time.

engines.py    things that work on one job after another, and a record of when they did
in_network.py steps of LuWu: a worker's compute, both directions of its link, the node's engines
driven.py     the same, decided by the project's own cores (driven_node.py, driven_worker.py)
links.py      what passes between these
recorded.py   what was played, as the events of a run
pipelines.py  units through stages of the node's optimizer, with as many in flight as there is room

Built on SimPy. Nothing is random: the same question gives the same record.
"""
