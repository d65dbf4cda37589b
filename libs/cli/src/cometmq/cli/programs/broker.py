# SPDX-License-Identifier: Apache-2.0
"""`cometmq broker`: run a broker in the foreground."""

from functools import partial

import typer

from cometmq.broker.app import BrokerApp
from cometmq.broker.registration.addresses import with_derived_port
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.option_sets import with_option_sets
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    Namesrv,
    RunOptions,
    named,
    run_program,
)
from cometmq.runtime.settings import Loaded, load

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def broker(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    running: RunOptions,
) -> None:
    """Run a broker in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 10911 sets listenPort.
    """

    def settings() -> Loaded[BrokerSettings]:
        return load(
            BrokerSettings,
            prefix="COMETMQ_BROKER",
            file=config,
            cli=named(namesrv),
            args=ctx.args,
        )

    run_program(
        "broker",
        settings,
        lambda loaded: partial(BrokerApp, loaded, config_path=config),
        config=config,
        running=running,
        shown=with_derived_port,
    )
