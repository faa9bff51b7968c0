"""Fault histories of the cores in a simulated world."""
