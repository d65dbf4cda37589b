# SPDX-License-Identifier: Apache-2.0
"""`cometmq exporter`: run an exporter in the foreground."""

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
from cometmq.exporter.app import ExporterApp
from cometmq.exporter.settings import PREFIX, ExporterSettings
from cometmq.runtime.settings import Loaded, load

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def exporter(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    running: RunOptions,
) -> None:
    """Run an exporter in the foreground; SIGTERM and Ctrl-C stop it.

    It asks all connected consumers for their statistics, and shows them as metrics. Every setting
    is also an option: --clients-max 500 sets clientsMax.

    \b
    EXAMPLE
      cometmq exporter -n mq1:9876
    """

    def settings() -> Loaded[ExporterSettings]:
        return load(
            ExporterSettings,
            prefix=PREFIX,
            file=config,
            cli=named(namesrv),
            args=ctx.args,
        )

    run_program(
        "exporter",
        settings,
        lambda loaded: partial(ExporterApp, loaded),
        config=config,
        running=running,
    )
