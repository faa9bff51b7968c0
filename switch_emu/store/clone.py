"""A store's files as reflinks: files of their own that share blocks until one side is written.

Where the file system has reflinks (Btrfs, XFS, bcachefs), this takes milliseconds and no space,
whatever the size. Each file is cloned at one instant, one after the other, the record of what is
decided first. So of a store that a node has open this is what a crash would have left, or pages are
already newer than the record says: `verify.py` tells which, and then it is made again.
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
    """This file system, or this pair of them, has none."""


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
                    raise  # else it went with its version just now
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
