"""What tests of several rooms share: none of it is a test.

Jobs and networks:

    local_job.py         clusters with everything real but the processes, for `tests/light_job.py`
    exports.py           states of small jobs, their exports, and all that a state holds
    written_run.py       files of a run as its processes write them, made without any process
    tap.py               a relay on the wire that sees what passes, and may change a bit of it
    transports.py        how transports of tests are made, strangers, and what is left
    key_directories.py   directories of keys, and transports that have them
    waiting.py           waiting for another thread or process; a clock moved by hand

Training:

    small_models.py      small models, their data, and training them both ways
    training_harness.py  workers in threads, through a `FakeNetwork` and in plain torch
    real_training.py     the same through a real switch, node and transport
    fake_nic.py          what `luwu.nic.shell.Nic` does, with threads in place of peers
    fake_streams.py      streams on a CPU whose work is done as late as the events allow
    collecting.py        calls in the middle of another function, as another thread may make them

Parts, each alone:

    node_parts.py        parts of the node's core, and their actions as short lines
    switch_parts.py      what parts of the switch's core are handed, and their answers as lines
    kernel_jobs.py       updates drawn at random, what torch makes of them, and kernels

Texts:

    command_line.py      command lines in documents and messages, parsed as ours
    docstrings.py        public names, and the examples of their docstrings
    schemas.py           documents in JSON beside the published schemas
"""
