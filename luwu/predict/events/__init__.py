"""The event core: what closed forms get wrong, played through in virtual time.

    engines.py            engines that work on one job after another, and a record of when
    schedules.py          1F1B and interleaved pipelines of training
    pipeline_training.py  a step of 3-D training through its pipeline's schedule
    data_parallel.py      a step of all other systems, unit by unit
    serving.py            requests in rounds of prefill and decode
    recorded.py           what was played, as the events of a run

Built on SimPy. Nothing is random: the same question gives the same record.
`luwu.predict.driven` plays LuWu's own cores.
"""
