"""The disk of this machine, measured.

timing.py       the mean of a few turns
disk_floors.py  the disk below a directory, on a temporary file
"""
