# SPDX-License-Identifier: Apache-2.0
"""`cometmq mqadmin`: the commands of RocketMQ's mqadmin, listed separately from ours."""

from typing import Any

import typer

from cometmq.cli.lazy import LazyGroup
from cometmq.cli.mqadmin import ALIASES, AREAS, COMMANDS


class MqadminCommands(LazyGroup):
    """The commands of mqadmin."""

    table = COMMANDS
    aliases = ALIASES
    areas = AREAS

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """List the commands by area: their descriptions do not fit on one screen."""
        with formatter.section("Commands, described by cometmq help mqadmin all, or AREA"):
            formatter.write_dl([(area, " ".join(self._of(it))) for it, area in AREAS.items()])


app = typer.Typer(
    cls=MqadminCommands, add_completion=False, no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def mqadmin() -> None:
    """Run one of RocketMQ's mqadmin commands; the word `mqadmin` may be left out."""
