"""How gradients are added in the network, as objects: what travels, what a slot does, what is left.

    interface.py        `Aggregator`: encode at the child, combine in a slot, decode at the node
    float32.py          the gradient itself, added in rank order: the default
    shared_exponent.py  int32 below the largest exponent of each block, agreed on first
    named.py            an aggregator by its name, those of other packages included

Arithmetic only, in NumPy: no socket, no clock, no torch. Workers, switches and nodes import it.
"""

from luwu.aggregate.float32 import Float32
from luwu.aggregate.interface import Aggregator
from luwu.aggregate.named import FLOAT32, make_aggregator

__all__ = ["FLOAT32", "Aggregator", "Float32", "make_aggregator"]
