# SPDX-License-Identifier: Apache-2.0
"""Replaces `~` at the beginning of a path by a home folder."""

import os

from cometmq.remoting.errors import SettingsError


def at_home(path: str, shown: str) -> str:
    """Return a path without `~` or `~user` at its beginning.

    Raise SettingsError, whose text begins with `shown`, if there is no such home folder: the path
    would name a folder in the current one.
    """
    found = os.path.expanduser(path)  # noqa: PTH111  # Path raises a RuntimeError
    if not found.startswith("~"):
        return found
    user = found[1:].partition("/")[0]
    reason = f"this machine has no user {user}" if user else "this user has no home folder"
    raise SettingsError(f"{shown}: {reason}; give the whole path")
