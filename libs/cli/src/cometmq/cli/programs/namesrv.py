# SPDX-License-Identifier: Apache-2.0
"""`cometmq namesrv`: run a name server in the foreground."""

from functools import partial

import typer

from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    LogJson,
    LogLevel,
    PrintSettings,
    configure_log,
    exit_on_bad_settings,
    serve,
    warn_unknown,
)
from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import NamesrvSettings, load_namesrv
from cometmq.runtime.settings import parse_options

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
def namesrv(
    ctx: typer.Context,
    config: ConfigFile = None,
    *,
    print_settings: PrintSettings = False,
    log_level: LogLevel = "info",
    log_json: LogJson = None,
) -> None:
    """Run a name server in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 9876 sets listenPort.
    """
    with exit_on_bad_settings():
        settings = load_namesrv(config, parse_options(NamesrvSettings, ctx.args))
    if print_settings:
        typer.echo(settings.as_table(), nl=False)
        return
    log = configure_log("namesrv", level=log_level, json=log_json)
    warn_unknown(settings, log)

    build = partial(NamesrvApp, settings)
    serve(build, settings, log=log)
