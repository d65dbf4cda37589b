# SPDX-License-Identifier: Apache-2.0
"""`cometmq mqadmin`: the commands of RocketMQ's mqadmin, listed separately from ours."""

from cometmq.cli.lazy import App, LazyGroup
from cometmq.cli.mqadmin import ALIASES, AREAS, COMMANDS


class MqadminCommands(LazyGroup):
    """The commands of mqadmin."""

    table = COMMANDS
    aliases = ALIASES
    panels = tuple(AREAS)


app = App(cls=MqadminCommands)


@app.callback()
def mqadmin() -> None:
    """Run one of RocketMQ's mqadmin commands; the word `mqadmin` may be left out.

    Names, options and output match mqadmin's, and no command asks for confirmation, so existing
    scripts keep working. Every command also takes --json.
    """
