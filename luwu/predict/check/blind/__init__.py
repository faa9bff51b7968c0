"""Configurations that were predicted blind, and what was published of them (`seen.py`).

questions.py  those that are questions; nothing of the second set was looked up
testbed.py    of the first set: what follows from the testbed of arXiv 2409.00918
rail_only.py  what rails without a network between them save
networks.py   rails and rates
rows.py       one prediction
"""
