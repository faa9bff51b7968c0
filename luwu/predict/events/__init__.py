"""The event core: what closed forms get wrong, played through in virtual time.

engines.py    things that work on one job after another, and a record of when they did
recorded.py   what was played, as the events of a run
schedules.py  1F1B and interleaved pipelines of training: what each stage does when
schedule_paths.py       the same by the longest path, without a record
pipeline_training.py    a step of 3-D training through its pipeline's schedule
flows.py      bytes over a graph of links that they share fairly
serving.py    requests that come, in rounds of prefill and decode

Built on SimPy. Nothing is random: the same question gives the same record.
"""
