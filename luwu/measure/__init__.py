"""Floors: the most that this machine can do, measured.

floors.py             all floors of a machine, measured within seconds before a run
timing.py             the median of a few repeats after a warm-up
disk_floors.py        the disk below a directory, on a temporary file
gpt_floor.py          compute of the built-in GPT per step
"""
