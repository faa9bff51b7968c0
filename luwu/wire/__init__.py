"""The protocol's messages, their bytes, and the description that all ranks must agree on.

messages.py     every message, one dataclass each
kinds.py        roles, verbs, payload rules, and the decorator that numbers messages
codec.py        messages to header bytes and back
description.py  the job as all ranks must describe it
hyper.py        hyper-parameters of one step
clips.py        what the clips of a step find, and their factor
averages.py     an average of the weights beside them: its field and its rate
altered.py      weights that are not those that the node published
squares.py      sums of squares that add up to the same norm on any number of nodes
statistics.py   statistics of a chunk in a measured step
reading.py      the description of a version that a reader receives
stored.py       the fields of a page, with their dtypes and sizes
state_names.py  torch's names of an optimizer's state and hyper-parameters
link_counts.py  the one count of messages and bytes, by link and kind of message
"""
