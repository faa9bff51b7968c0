"""Units: parameters of one `fully_shard` call, their layout, and pulls ahead of use.

placeholder.py   what a module has in place of a parameter whose weights are not here
unit.py          a unit between pull and free, and its forwards that have a graph
model.py         all units of a session, trained and frozen; their layout, made when the
                 optimizer is constructed
prefetch.py      pulls ahead of use, in the order of the last step
"""
