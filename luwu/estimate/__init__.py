"""The estimate: what a job needs before it runs, and what limited its steps when it ran.

job.py       the job: what its script joins with, and the plans of its node and switch
uses.py      memory by role, space on disk, bytes of a step on disk and links
plan.py      the estimate: all of it, as numbers and as text; pure
disk.py      the rates of a directory, measured
script.py    the job of a script, of one that does not run and of one that starts
describe.py  the process that runs the script without weights
steps.py     after a run: how long its steps took, and what limited them
"""
