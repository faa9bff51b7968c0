"""The cores of LuWu driven in virtual time, with costs in place of work.

cores.py            which cores are played
driven.py           steps on machines that are not here, and the switch; the other processes are in
                    driven_worker.py and driven_node.py
engines.py          engines that work on one job after another, a record of when, and links
"""
