"""The event core: what closed forms get wrong, played through in virtual time.

    engines.py            engines that work on one job after another, and a record of when
    serving.py            requests in rounds of prefill and decode

Built on SimPy. Nothing is random: the same question gives the same record.
`luwu.predict.driven` plays LuWu's own cores.
"""
