"""The worker's SmartNIC: push, pull and wait, on an I/O thread of its own.

shell.py      `Nic`: the training thread's calls, and the I/O thread that runs the core
core/         the protocol, pure
mailbox.py    what the I/O thread reports to the training thread
handles.py    handles that the training thread waits for; weights on their way in
cells.py      memory for gradients on their way out
copies.py     pushes whose gradients a GPU is still copying
encoder.py    encodes gradients for an aggregator, before they leave
reader.py     `StateReader`: reads a decided version of a running job
"""
