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
    given_options,
    run_program,
)
from cometmq.runtime.settings import Loaded, load

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

    def settings() -> Loaded[BrokerSettings]:
        options = given_options(ctx, BrokerSettings, namesrv)
        return load(BrokerSettings, prefix="COMETMQ_BROKER", file=config, cli=options)

    run_program(
        "broker",
        settings,
        lambda loaded: partial(BrokerApp, loaded, config_path=config),
        config=config,
        print_settings=print_settings,
        log_level=log_level,
        log_json=log_json,
    )
