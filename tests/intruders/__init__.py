"""Scripted clients that have no right to be in a job: `python -m tests.intruders`."""
