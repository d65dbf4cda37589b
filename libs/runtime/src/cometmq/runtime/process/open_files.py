# SPDX-License-Identifier: Apache-2.0
"""The number of files and connections that this process may have open."""

import resource
from typing import Final

_LIMIT_MAX: Final = 1 << 20
"""Used if the system sets no limit; the kernel's default limit for a process (fs.nr_open)."""

RESERVED_FILES: Final = 512
"""Number of files kept for other uses: listeners, HTTP connections, connections to other servers,
and files of tables and logs.
"""


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit, as Java does.

    Shells and systemd set a soft limit of 1024 for programs that use `select`; it would be lower
    than a server's limit of connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return  # a sandbox may forbid it; the limit stays as it is


def open_files_limit() -> int:
    """Return how many files and connections this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, *, files_max: int = 0) -> int:
    """Return how many of the wanted connections a server may accept, so that it can always open its
    other files: `files_max` files of a store, and RESERVED_FILES.

    If the system's limit is very low, an eighth of it is still used for connections.
    """
    limit = open_files_limit()
    return max(1, min(wanted, max(limit // 8, limit - files_max - RESERVED_FILES)))
