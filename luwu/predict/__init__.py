"""The performance model: how long a step of training takes on machines that are not here.

units.py        numbers with units, of files and of people -> SI
catalogue.py    what is known: devices, hosts, links, disks, models; each number with its source
model.py        a transformer: parameters, operations, activations
operators.py    how long a device takes for a matrix product, or to pass over memory
collectives.py  how long ranks take to exchange
rank_groups.py  ranks that exchange, and what every network tells of them
topologies.py   networks of switches: Clos, rail-optimised, rail-only, trees of aggregators
topology_graphs.py    the same as graphs, where they are small
direct_topologies.py  torus, dragonfly
cost.py         what machines and networks cost: to buy, an hour, a token, in energy
training.py     a step of tensor, pipeline, context and data parallel training
memory.py       what a device holds

Times are seconds, sizes bytes, rates bytes or operations a second, one direction of a link, dense
operations: SI without prefixes. Equations have numbers, which docs/predict/equations.md lists with
their sources.
"""
