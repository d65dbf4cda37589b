# SPDX-License-Identifier: Apache-2.0
"""The commands that run one program in the foreground, except the broker's."""

from functools import partial
from importlib import import_module

import typer

from cometmq.cli.lazy import App
from cometmq.cli.programs.running import (
    OWN_OPTIONS,
    ConfigFile,
    Namesrv,
    RunOptions,
    named,
    run_program,
)
from cometmq.runtime.process.system import yield_processors

app = App()


@app.command("namesrv", context_settings=OWN_OPTIONS)
def namesrv(ctx: typer.Context, config: ConfigFile = None, *, running: RunOptions) -> None:
    """Run a name server in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --listen-port 9876 sets listenPort.

    \b
    EXAMPLE
      cometmq namesrv -c namesrv.conf
    """
    load = import_module("cometmq.namesrv.settings").load_namesrv
    run_program("namesrv", config, running, load=partial(load, config, args=ctx.args))


@app.command("elector", context_settings=OWN_OPTIONS)
def elector(ctx: typer.Context, config: ConfigFile = None, *, running: RunOptions) -> None:
    """Run the elector of a broker group in the foreground; SIGTERM and Ctrl-C stop it.

    Run one on each of several machines; they do not interfere with each other. Every setting is
    also an option: --broker-name orders sets brokerName.

    \b
    EXAMPLE
      cometmq elector -c elector.conf
    """
    run_program("elector", config, running, args=ctx.args)


@app.command("txn-checker", context_settings=OWN_OPTIONS)
def txn_checker(
    ctx: typer.Context, config: ConfigFile = None, namesrv: Namesrv = None, *, running: RunOptions
) -> None:
    """Run a transaction check service in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --transaction-check-max 5 sets transactionCheckMax.

    \b
    EXAMPLE
      cometmq txn-checker -c checker.conf -n mq1:9876
    """
    run_program("txn-checker", config, running, args=ctx.args, cli=named(namesrv))


@app.command("exporter", context_settings=OWN_OPTIONS)
def exporter(
    ctx: typer.Context, config: ConfigFile = None, namesrv: Namesrv = None, *, running: RunOptions
) -> None:
    """Run an exporter in the foreground; SIGTERM and Ctrl-C stop it.

    It asks all connected consumers for their statistics, and shows them as metrics. Every setting
    is also an option: --clients-max 500 sets clientsMax.

    \b
    EXAMPLE
      cometmq exporter -n mq1:9876
    """
    run_program("exporter", config, running, args=ctx.args, cli=named(namesrv))


@app.command("console", context_settings=OWN_OPTIONS)
def console(
    ctx: typer.Context, config: ConfigFile = None, namesrv: Namesrv = None, *, running: RunOptions
) -> None:
    """Run a console in the foreground; SIGTERM and Ctrl-C stop it.

    It shows the cluster in a browser; changes need a login. Every setting is also an option:
    --history-days 30 sets historyDays.

    \b
    EXAMPLE
      cometmq console -n mq1:9876
    """
    yield_processors()
    run_program("console", config, running, args=ctx.args, cli=named(namesrv))
