"""Faults on purpose: which (`plan`), what should come of them (`outlook`), and doing it (`work`).

How far the run is `progress` reads from what it writes anyway.
"""
