"""Whole jobs in one process: everything is real but the processes."""
