"""Failed reads, writes and flushes as our errors: the place, the system's reason, what to do.

A write or a flush that failed is never tried again: a second flush may succeed although the first
has lost the data. So each of these errors stops the node (exit code 5), and nothing of the step
that was being made counts.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from luwu.base.errors import StateError, StoreFullError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or a quota."""
DISK_FAULTS = (*NO_ROOM, errno.EFBIG, errno.EACCES, errno.EIO, errno.EROFS)
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
    if error.errno in (errno.EACCES, errno.EPERM):
        advice = f"The user of this process (uid {os.geteuid()}) may not do it: change the owner or"
        advice += " mode of the place (chown, chmod), or name another,"
        return StateError(f"{what}: {error}. {consequence}{advice} and {then}.", code="E514")
    if error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        advice = "Its file system takes no file of this size: name a place on another"
        if limit != resource.RLIM_INFINITY:
            advice = f"No file may be larger than {limit} bytes here: raise this limit (ulimit -f)"
        return StoreFullError(f"{what}: {error}. {consequence}{advice} and {then}.", code="E514")
    return StateError(f"{what}: {error}. {consequence}Put the disk right and {then}.", code="E505")


@contextmanager
def refusing(what: str, consequence: str = "") -> Iterator[None]:
    """Raises StateError or StoreFullError for what the system refuses in here."""
    try:
        yield
    except OSError as exc:
        raise refusal(what, exc, consequence) from exc
