# SPDX-License-Identifier: Apache-2.0
"""`cometmq mqadmin`: the commands of RocketMQ's mqadmin, listed separately from ours."""

import typer

from cometmq.cli.lazy import LazyGroup
from cometmq.cli.mqadmin import ALIASES, COMMANDS


class MqadminCommands(LazyGroup):
    """The commands of mqadmin."""

    table = COMMANDS
    aliases = ALIASES


app = typer.Typer(
    cls=MqadminCommands, add_completion=False, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def mqadmin() -> None:
    """Run one of RocketMQ's mqadmin commands; the word `mqadmin` may be left out.

    Names, options and output match mqadmin's, and no command asks for confirmation, so existing
    scripts keep working. Every command also takes --json.
    """
