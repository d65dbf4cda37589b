# SPDX-License-Identifier: Apache-2.0
"""`cometmq namesrv`: run a name server in the foreground."""

from functools import partial

import typer

from cometmq.cli.option_sets import with_option_sets
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    RunOptions,
    run_program,
)
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import KEPT, NamesrvSettings, load_namesrv
from cometmq.runtime.settings import Loaded

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def namesrv(
    ctx: typer.Context,
    config: ConfigFile = None,
    *,
    running: RunOptions,
) -> None:
    """Run a name server in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 9876 sets listenPort.

    \b
    EXAMPLE
      cometmq namesrv -c namesrv.conf
    """

    def settings() -> Loaded[NamesrvSettings]:
        return load_namesrv(config, args=ctx.args)

    run_program(
        "namesrv",
        settings,
        lambda loaded: partial(NamesrvApp, loaded),
        config=config,
        running=running,
        kept=KEPT,
    )
