# SPDX-License-Identifier: Apache-2.0
"""`cometmq broker`: run a broker in the foreground."""

from functools import partial

import typer

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    LogJson,
    LogLevel,
    Namesrv,
    PrintSettings,
    configure_log,
    exit_on_bad_settings,
    serve,
    warn_unknown,
)
from cometmq.runtime.settings import load, parse_options

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
def broker(  # one parameter per option
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    print_settings: PrintSettings = False,
    log_level: LogLevel = "info",
    log_json: LogJson = None,
) -> None:
    """Run a broker in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 10911 sets listenPort.
    """
    with exit_on_bad_settings():
        options = {} if namesrv is None else {"namesrvAddr": namesrv}
        options |= parse_options(BrokerSettings, ctx.args)
        settings = load(BrokerSettings, prefix="COMETMQ_BROKER", file=config, cli=options)
    if print_settings:
        typer.echo(settings.as_table(), nl=False)
        return
    log = configure_log("broker", level=log_level, json=log_json)
    warn_unknown(settings, log)

    build = partial(BrokerApp, settings, config_path=config)
    serve(build, settings, log=log)
