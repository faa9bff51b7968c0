"""Evidence that a change of the cores' structure changes nothing else; see design note 0034.

    adapter.py     the one file that knows how today's cores are built, called and named
    values.py      what crosses a core's boundary as plain values, and back
    record.py      the file format
    recorder.py    writes down what cores are given and what they answer
    replayer.py    gives it to new cores, and finds the first difference
    histories.py   simulated histories to record, and how they were chosen
    suites.py      tests whose cores are recorded too
    coverage.py    what records cover
    headers.py     the exact bytes of every message, and what is refused
    jobs.py        whole jobs in one process, by every way to run
    digests.py     digests of trained weights, by way of running
    states.py      states that must be read as they were written

`python -m tests.evidence --help` lists the commands.
"""
