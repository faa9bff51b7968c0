"""The SmartSwitch: sums what workers push and multicasts weights.

core/        the pure state machine
shell.py     the process part: transport and core together
process.py   starts a switch from its specification; imports no torch
host_link.py counts what the network cards of this host carry
adding.py    the sum of a slot, compiled or in NumPy
capacity.py  the slots of a job in protocol fidelity
plan.py      the memory plan: the uses of `--switch-memory-budget`
"""
