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
    """Run a command of RocketMQ's mqadmin; `cometmq topicList` works without `mqadmin`, too.

    Names, options and output are mqadmin's, and no command asks for confirmation, so that scripts
    keep working. Every command also takes --json.
    """
