"""What must stay: bytes of messages, weights by every way to run, states of before.

    headers.py     the exact bytes of every message, and what is refused
    jobs.py        whole jobs in one process, by every way to run
    digests.py     digests of trained weights, by way of running
    states.py      states that must be read as they were written

`pytest tests/evidence` compares; `python -m tests.evidence WHAT` writes anew.
"""
