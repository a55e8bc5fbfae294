"""An SQLite file that several processes share by its path, and that somebody may delete or replace under them.

A connection stays with the file that it has opened, whatever the path names afterwards: who writes on must look, now and then, whether it is still
the same one. And a file that is made where another one was must not meet what that one has left beside it (`-wal`, `-shm`): SQLite would take it for
the new file's own. Processes make the file one after another, under a lock on its folder.
"""

import fcntl
import os
from pathlib import Path

LEFT_BESIDE = ("-wal", "-shm")

Which = tuple[int, int]  # device, inode


def make(path: Path) -> Which:
    """The file that the path names; an empty one is made if there is none, its folder too. Raises OSError.

    Asked for before the file is opened: one that is replaced in between is then noticed, and never taken for the one that is open.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not path.exists():
            for end in LEFT_BESIDE:
                path.with_name(path.name + end).unlink(missing_ok=True)
            path.touch()
        found = which(path)
    finally:
        os.close(folder)
    if found is None:
        raise FileNotFoundError(f"{path} was deleted as it was made")
    return found


def which(path: Path) -> Which | None:
    """The file that the path names now; None if there is none, or none that can be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
