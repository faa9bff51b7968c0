"""The two machines in the network: the switch and the optimizer node.

switch/   the SmartSwitch: its core and its process
node/     the optimizer node: its core, its pipeline and its process
store/    page stores
process/  the event loop of both, admission of peers, payloads, counters
links/    emulated links
native/   compiled arithmetic
roles.py  a role as a process, from its document
"""
