"""The estimate: what a job needs before it runs, and what limited its steps when it ran.

shape.py     a job in numbers, from a model that need not exist
plan.py      the estimate: all that a job takes; pure
uses.py      memory by role, space on disk, bytes of a step on disk and links
disk.py      the rates of a directory, measured
job.py       a job by its configuration, with its plan and its estimate
gpt.py       the built-in GPT as a job
script.py    a user's script as a job
describe.py  the process that runs the script without weights
text.py      the estimate as text
outcome.py   the resource that limited steps, by their spans
steps.py     the steps of a run, measured
"""
