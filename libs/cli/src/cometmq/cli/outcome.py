# SPDX-License-Identifier: Apache-2.0
"""Problems that do not end a command, but make its exit status 1."""

from typing import Final

from cometmq.cli.say import say

DAMAGES_MAX: Final = 100
"""Maximum number of texts about damaged messages that are printed."""

MISSING: Final[dict[str, str]] = {}
"""Address of a server that did not answer, or name of a broker without a master -> the reason and a
remedy. `main` prints them after the command's output.
"""

DAMAGES: Final[dict[str, None]] = {}
"""Damage to messages that has been printed, in order of discovery."""


def note_damage(text: str) -> None:
    """Print each text about damaged messages once, and make the command end with exit status 1."""
    if text in DAMAGES:
        return
    if len(DAMAGES) < DAMAGES_MAX:
        say(f"cometmq: {text}", err=True)
    elif len(DAMAGES) == DAMAGES_MAX:
        say("cometmq: more messages are damaged; they are not named here", err=True)
    else:
        return
    DAMAGES[text] = None
