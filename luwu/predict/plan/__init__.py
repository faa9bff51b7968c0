"""A search for the best configuration of training.

planner.py        the search, and what no other configuration beats
planner_space.py  the configurations that it searches
"""
