"""Faults at every system call by which an optimizer node touches its state.

story.py     what is trained, by a node process and a process of two workers
tracing.py   strace: which calls there are, and one of them killed or refused
trials.py    every call, one trial each, and what must hold after it
__main__.py  `python -m tests.syscalls`
"""
