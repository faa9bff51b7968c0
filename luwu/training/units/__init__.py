"""Units: parameters of one `fully_shard` call, their layout, and pulls ahead of use.

placeholder.py   what stands in a module for a parameter whose weights are not here
unit.py          a unit between pull and free, and its forwards that have a graph
model.py         all units of a session; their layout, made when the optimizer is constructed
roots.py         the trained model, and frozen ones beside it
prefetch.py      pulls ahead of use, in the order of the last step
"""
