"""Layers, operators, exchanges and memory of a training job.

clock.py        virtual time, and processes that wait for it
job.py          what is trained, on what, and how; what a prediction is
layers.py       a matrix product, a pass over memory; a layer; experts, and ranks that share them
collectives.py  exchanges of ranks, by closed forms; compute and exchange at once
placement.py    ranks that share a domain
traffic.py      bytes that the busiest device sends; keys and values of context parallel ranks
memory.py       memory of a device in training
"""
