"""Foundations that every other package may use; nothing here knows the network or torch.

errors.py         errors that users and shells see, by whose fault they are; refusals of the system
limits.py         every limit of the protocol and the store
config.py         the configuration of a run: one table of keys, read from four places
parsers.py        a parser for each kind of value that a user writes
quantities.py     sizes, rates and times with units
retry.py          how patient a sender of requests is
links.py          emulated links as a user writes them
tree.py           the tree of switches
directories.py    directories that are made whole or not at all, locked, on a disk or in memory
values.py         plain values and tensors as bytes, without pickle
identifiers.py    names of quantities as keys of documents, and as words
foreign.py        files that may come from anywhere: opened, read and parsed with limits
json_file.py      JSON files that are written whole or not at all
socket_directory.py short private directories for sockets
expendable.py     files that a run can do without
clock.py          the clock: the only place that reads time
seeds.py          random numbers, all derived from one seed by name
events.py         events: one line for people, one JSON line for programs
failpoints.py     named places where a test makes a process fail
keys.py           keys of the processes of a job
digest.py         the digest of a model's weights
dtypes.py         every dtype: its names, its bytes, and where it may be used
closing.py        the base of objects that are closed by `with`
loopback.py       127.0.0.1, or ::1
lifeline.py       the end of a child process when its parent is gone
own.py            imports of LuWu's own packages
torch_import.py   an import of torch in two thirds of the time, or for several processes
address.py        the address of an array's memory
address_range.py  reserved addresses whose memory is given back and taken again
process_memory.py memory of processes as the kernel counts it
machine_memory.py memory of this machine: what we can have, and what is free
libc.py           calls of libc that Python does not offer
job_spec.py       the specification of a job that its processes share, as a document and back
"""
