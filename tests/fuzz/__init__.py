"""Bytes that nobody should send or store, by the million: `python -m tests.fuzz`."""
