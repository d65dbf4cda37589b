# SPDX-License-Identifier: Apache-2.0
"""The commands of RocketMQ's mqadmin, under their own names and with their own options.

One module per family of commands. This table is all that the help page needs; a module is
imported when one of its commands is called.
"""

from collections.abc import Mapping
from typing import Final

from cometmq.cli.lazy import CommandInfo

PANEL: Final = "As RocketMQ's mqadmin"

FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    "cometmq.cli.mqadmin.topics": {
        "updateTopic": "Create a topic, or change it.",
    },
}
"""Module -> its commands -> what they do."""

COMMANDS: Final[Mapping[str, CommandInfo]] = {
    name: CommandInfo(module, help_line, PANEL, is_in_family=True)
    for module, commands in FAMILIES.items()
    for name, help_line in commands.items()
}
