"""The two machines in the network: the switch and the optimizer node."""
