"""The estimate: what a job needs, and how long a step takes on this machine, before it runs.

job.py       a configuration made into a job, its plan and its estimate; looks at the machine
shape.py     the job in numbers, from a model that need not exist
plan.py      the estimate: all that a job takes, and the bottleneck; pure
budget.py    memory per role, space on disk, threads
activations.py  what a forward keeps for its backward
traffic.py   bytes that a step moves, on disk and on links
steps.py     the steps of `luwu run`, whose model is known only when it runs
outcome.py   the estimate beside the run: the bottleneck, and the error
text.py      the estimate as text
"""
