"""The worker's SmartNIC: push, pull and wait, on an I/O thread of its own.

shell.py      `Nic`: the training thread's calls, and the I/O thread that runs the core
core/         the protocol, pure
threads.py    what passes between its threads: handles, the mailbox, copies by a GPU
memory.py     memory of payloads: gradients on their way out, weights on their way in
board.py      weights that are found by looking, in memory shared with their sender
encoder.py    encodes gradients for an aggregator, before they leave
reader.py     `StateReader`: reads a decided version of a running job
"""
