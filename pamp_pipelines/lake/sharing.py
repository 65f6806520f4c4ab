"""What the group of its owner may read, whatever the umask of who makes it: a lake is a team's."""

import contextlib
import stat
from pathlib import Path

_FOLDER = stat.S_IRGRP | stat.S_IXGRP


def share(*paths: Path) -> None:
    """Let the group read files, and list and enter folders; those of another owner are left as they are."""
    for path in paths:
        mode = path.stat().st_mode
        wanted = _FOLDER if stat.S_ISDIR(mode) else stat.S_IRGRP
        if mode & wanted != wanted:
            with contextlib.suppress(PermissionError):
                path.chmod(stat.S_IMODE(mode) | wanted)
