"""The protocol's messages, their bytes, and the description that all ranks must agree on.

messages.py     every message, one dataclass each; roles and verbs
codec.py        messages to header bytes and back
description.py  the job as all ranks must describe it
hyper.py        hyper-parameters of one step
norms.py        the norm of a gradient over several nodes, and the clips of a step
altered.py      weights that are not those that the node published
reading.py      the description of a version that a reader receives
stored.py       the fields of a page: dtypes and sizes, the average, torch's names
link_counts.py  the one count of messages and bytes, by link and kind of message
"""
