"""Emulated links: rate, delay, loss."""
