"""Hosts of a job: one or many, real or emulated, and the optimizer nodes on them."""
