"""Starts the processes of a run, watches them, and leaves nothing behind.

supervisor.py     the processes of a run on this host
sizes.py          memory budget, chunk and extent of a job
serving.py        switch and node of a job, and the file by which workers join
specs.py          the specifications of switches and nodes
roles.py          a switch or node as a process, over all its starts
agent.py          the workers of this host, forked and forked again
entry.py          the program of a worker: the user's script
attendance.py     workers of this host that are done
switch_memory.py  the memory plan of the switches
worker_loss.py    what a lost worker means: `--on-worker-loss`
progress.py       progress of a run, from its node's events
starting.py       the lines at the start of a run, and how to continue one
local_cluster.py  switch, node and workers in threads of this process; `luwu.init_local`
network.py        transport, tree of switches, emulated links and disk of a run
nodes.py          the optimizer nodes of a job
processes/        child processes, their directory and their output
"""
