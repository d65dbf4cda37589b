# SPDX-License-Identifier: Apache-2.0
"""`cometmq elector`: run the elector of a broker group in the foreground."""

from functools import partial

import typer

from cometmq.cli.option_sets import with_option_sets
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    RunOptions,
    run_program,
)
from cometmq.elector.app import ElectorApp
from cometmq.elector.settings import PREFIX, ElectorSettings
from cometmq.runtime.settings import Loaded, load

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def elector(
    ctx: typer.Context,
    config: ConfigFile = None,
    *,
    running: RunOptions,
) -> None:
    """Run the elector of a broker group in the foreground; SIGTERM and Ctrl-C stop it.

    Run one on each of several machines; they do not interfere with each other. Every setting is
    also an option: --broker-name orders sets brokerName.

    \b
    EXAMPLE
      cometmq elector -c elector.conf
    """

    def settings() -> Loaded[ElectorSettings]:
        return load(ElectorSettings, prefix=PREFIX, file=config, args=ctx.args)

    run_program(
        "elector",
        settings,
        lambda loaded: partial(ElectorApp, loaded),
        config=config,
        running=running,
    )
