"""Training with torch: `fully_shard`, its hooks, and first weights.

Rooms, each of which may import those below it:

script/    what a training script calls, and `Session`, which puts the parts together
steps/     one step: forwards and backwards, pulls and pushes, its commit, scale and result
state/     first weights, and what is attached
units/     the parameters of one `fully_shard` call, their layout, and pulls ahead of use
devices/   memory of the host and of the device: a unit's weights, gradients on their way out
base/      the progress of the job, names, what torch does around a call

The way of a gradient: `steps/hooks.py` (`_Close.backward`), `steps/backward.py` (`close`),
`devices/device.py` (`write_unit`), and `push` of the NIC.
"""
