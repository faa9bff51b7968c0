"""Layers, operators, exchanges and memory of a training job.

job.py          what is trained, on what, and how; what a prediction is
operators.py    a matrix product, a pass over memory
layers.py       a layer, forward and backward
experts.py      experts, and ranks that share them
context.py      keys and values that context parallel ranks exchange
collectives.py  exchanges of ranks, by closed forms
placement.py    ranks that share a domain
overlap.py      compute and exchange at once
traffic.py      bytes that the busiest device sends
memory.py       memory of a device in training
"""
