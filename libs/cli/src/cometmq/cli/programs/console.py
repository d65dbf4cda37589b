# SPDX-License-Identifier: Apache-2.0
"""`cometmq console`: run a console in the foreground."""

from functools import partial

import typer

from cometmq.cli.option_sets import with_option_sets
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    Namesrv,
    RunOptions,
    named,
    run_program,
)
from cometmq.console.app import ConsoleApp
from cometmq.console.settings import PREFIX, ConsoleSettings
from cometmq.runtime.settings import Loaded, load

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def console(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    running: RunOptions,
) -> None:
    """Run a console in the foreground; SIGTERM and Ctrl-C stop it.

    It shows the cluster in a browser; changes need a login. Every setting is also an option:
    --history-days 30 sets historyDays.

    \b
    EXAMPLE
      cometmq console -n mq1:9876
    """

    def settings() -> Loaded[ConsoleSettings]:
        return load(
            ConsoleSettings,
            prefix=PREFIX,
            file=config,
            cli=named(namesrv),
            args=ctx.args,
        )

    run_program(
        "console",
        settings,
        lambda loaded: partial(ConsoleApp, loaded),
        config=config,
        running=running,
    )
