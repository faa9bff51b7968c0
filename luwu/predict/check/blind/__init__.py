"""Configurations that were predicted blind, and what was published of them (`seen.py`).

training.py   jobs of `data/calibration/blind_training.toml`, and memory
inference.py  answers on devices and on sockets
testbed.py    the testbed of arXiv 2409.00918, and what follows from it
rail_only.py  what rails without a network between them save
networks.py   rails, rates, devices
questions.py  the second set, of `data/calibration/blind_2.toml`; nothing of it was looked up
rows.py       one prediction
"""
