"""The worker's end of the network."""
