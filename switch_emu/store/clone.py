"""Clones of a store's files as reflinks: they share blocks until one side is written.

Where the file system has reflinks (Btrfs, XFS, bcachefs), a clone takes milliseconds and no space,
whatever the size. Files are cloned one after the other, each at one instant, the superblock first.
A clone of an open store is therefore in the state that a crash would leave, or its pages are newer
than its superblock: `verify.py` detects this, and the clone is repeated.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from switch_emu.store.directory import CONFIG_NAME, LOCK_NAME, META_NAME, SIDE_NAMES

_FICLONE = 0x40049409
_NOT_HERE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)


class NoReflinks(Exception):
    """The file system, or the pair of them, has no reflinks."""


def clone_store(source: Path, target: Path) -> None:
    """Make the files of a store in the empty directory `target`, and flush them.

    Raises: NoReflinks, with nothing left in `target`; OSError.
    """
    names = [META_NAME, LOCK_NAME, CONFIG_NAME, *SIDE_NAMES]
    names += sorted(path.name for path in source.glob("kept-*.dat"))
    try:
        for name in names:
            try:
                _clone(source / name, target / name)
            except FileNotFoundError:
                if not name.startswith("kept-"):
                    raise  # else it was deleted with its version just now
    except NoReflinks:
        for name in names:
            (target / name).unlink(missing_ok=True)
        raise


def _clone(source: Path, target: Path) -> None:
    read = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        made = os.open(target, flags, 0o600)
        try:
            fcntl.ioctl(made, _FICLONE, read)
            os.fsync(made)
        except OSError as exc:
            if exc.errno in _NOT_HERE:
                raise NoReflinks(f"{target}: no reflink of {source} ({exc})") from exc
            raise
        finally:
            os.close(made)
    finally:
        os.close(read)
