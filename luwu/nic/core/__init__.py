"""The worker's side of the protocol, pure: `NicCore`, and `ReaderCore` for readers.

`NicCore` owns an outbox, an uplink and five parts. Each part is handed the outbox and the uplink,
knows no other part, and reports what concerns others as a return value.

    actions.py       what a core asks of its shell, and what it is given
    worker.py        `NicCore`: events in, actions out; passes each to its part, and joins them up
    membership.py    joining, new attempts, cancelling, leaving
    requests.py      loads, pulls and pushes, until all of each is answered
    encoding.py      pushes that an aggregator encodes before they travel
    attachments.py   what is stored beside the version of a step (`luwu.attach`)
    reader.py        `ReaderCore`: a decided version, field by field
"""

from luwu.nic.core.worker import NicCore

__all__ = ["NicCore"]
