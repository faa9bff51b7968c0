"""The SmartNIC of a worker: push, pull and wait.

core/         the pure state machine
shell.py      `Nic`: the I/O thread that runs the core and owns the transport
mailbox.py    what the I/O thread passes to the training thread
handles.py    handles of pushes, pulls and steps; counters
cells.py      memory for gradients on their way out
incoming.py   weights on their way in: copied, or used in place
encoder.py    encoding of gradients for an aggregator
flat_push.py  a push of one flat vector, without sharded modules
reader.py     a reader of decided versions
"""
