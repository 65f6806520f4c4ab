"""A full disk, told from other failures: the log of a worker may lie on that very disk and say nothing."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

EXIT_NO_SPACE = 74
"""Exit status of a worker that ran out of disk (EX_IOERR)."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_TEXTS = tuple(os.strerror(number) for number in sorted(_NO_SPACE))
_FULL_BYTES = 64 * 1024
"""A disk with less to give is full, whatever the worker said: not even a log fits."""


def is_no_space(error: BaseException) -> bool:
    """Whether an exception, or what it was raised from, says that a disk is full.

    Libraries in Rust and C++ raise types of their own, with the system's words in their text.
    """
    one: BaseException | None = error
    seen: set[int] = set()  # causes can lead back to where they began
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if (isinstance(one, OSError) and one.errno in _NO_SPACE) or says_no_space([str(one)]):
            return True
        one = one.__cause__ or one.__context__
    return False


def says_no_space(lines: Iterable[str]) -> bool:
    """Whether a text has the system's words for a full disk."""
    return any(text in line for line in lines for text in _TEXTS)


def is_full(folder: Path) -> bool:
    """Whether the disk of an existing folder has no room for this user, in bytes or in files."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    # some file systems do not count their files
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def run_main(main: Callable[[Path], int | None]) -> NoReturn:
    """Run a worker's ``main`` with the job file of its command line, and exit with what it returns.

    A full disk ends it with ``EXIT_NO_SPACE``, which reaches the caller also where no byte can be written any more.
    """
    try:
        code = main(Path(sys.argv[1]))
    except Exception as error:
        if not is_no_space(error):
            raise
        with contextlib.suppress(OSError):
            traceback.print_exc()
        code = EXIT_NO_SPACE
    sys.exit(code)
