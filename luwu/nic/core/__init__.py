"""The worker's side of the protocol, pure: `NicCore`, and `ReaderCore` for readers.

`NicCore` owns an outbox, an uplink and five parts. Each part is handed the outbox and the uplink,
knows no other part, and reports what concerns others as a return value.

    actions.py       what a core asks of its shell, and what it is given
    worker.py        `NicCore`: events in, actions out; passes each to its part, and joins them up
    membership.py    joining, new attempts, cancelling, leaving
    requests.py      loads, pulls, pushes and attachments, until all of each is answered
    reader.py        `ReaderCore`: a decided version, field by field
"""

from luwu.nic.core.worker import NicCore

__all__ = ["NicCore"]
