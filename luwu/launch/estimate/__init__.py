"""What a job will take on this machine, said before it runs.

shape.py     the job: layout, workers, transport, order of work
traffic.py   bytes on disk and on links in a step
messages.py  messages by process, and what they cost
budget.py    memory of each role, space on disk, threads
plan.py      `estimate`: all of it, the floors in seconds, and which resource binds
job.py       from a configuration to the job; here files are looked at
text.py      the same for people
outcome.py   after a run: which resource did bind, and how far the estimate was off
steps.py     after `luwu run`, whose model was not known before: the same from what it left

Nothing is imported here: `plan` needs torch, and what a finished run says does not.
"""
