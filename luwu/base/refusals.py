"""Failed reads, writes and flushes as our errors: the place, the system's reason, what to do.

A write or a flush that failed is never tried again: a second flush may succeed although the first
has lost the data. So each of these errors stops the node (exit code 5), and nothing of the step
that was being made counts.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from luwu.base.errors import StateError, StoreFullError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, a quota, or a limit of file sizes."""
DISK_FAULTS = (*NO_ROOM, errno.EIO, errno.EROFS)
"""Errors that a restart would not mend."""


def refusal(
    what: str, error: OSError, consequence: str = "", *, then: str = "start the node again"
) -> StateError:
    """The error for `what` the system refused; StoreFullError where there is no room.

    `consequence`: a sentence on what that means, with a space behind it; `then`: what to do when
    the disk is right again.
    """
    if error.errno in NO_ROOM:
        return StoreFullError(f"{what}: {error}. {consequence}Free some space and {then}.")
    return StateError(f"{what}: {error}. {consequence}Put the disk right and {then}.", code="E505")


@contextmanager
def refusing(what: str, consequence: str = "") -> Iterator[None]:
    """Raises StateError or StoreFullError for what the system refuses in here."""
    try:
        yield
    except OSError as exc:
        raise refusal(what, exc, consequence) from exc
