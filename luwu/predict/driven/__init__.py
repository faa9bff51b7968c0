"""The cores of LuWu driven in virtual time, with costs in place of work.

cores.py            which cores are played
driven.py           steps on machines that are not here; links.py, and one file for each
                    process: driven_worker.py, driven_node.py, the switch in driven.py;
                        engine_work.py has what the node's work takes
engines.py          engines that work on one job after another, and a record of when
"""
