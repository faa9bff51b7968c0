"""The cores of LuWu driven in virtual time, with costs in place of work.

driven.py         steps on machines that are not here, and the switch
driven_worker.py  a worker, and what it computes
driven_node.py    the node, and what its work takes
engines.py        engines that work on one job after another, a record of when, and links
"""
