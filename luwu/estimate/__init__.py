"""The estimate: what a job needs before it runs.

job.py       the job: what its script joins with, and the plans of its node and switch
uses.py      memory by role, space on disk, bytes of a step on disk and links
plan.py      the estimate: all of it, as numbers and as text; pure
script.py    the job of a script, of one that does not run and of one that starts
describe.py  the process that runs the script without weights
"""
