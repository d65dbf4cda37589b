# SPDX-License-Identifier: Apache-2.0
"""`cometmq txn-checker`: run a transaction check service in the foreground."""

from functools import partial

import typer

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
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.settings import TxnCheckerSettings

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
def txn_checker(  # one parameter per option
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    print_settings: PrintSettings = False,
    log_level: LogLevel = "info",
    log_json: LogJson = None,
) -> None:
    """Run a transaction check service in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --transaction-check-max 5 sets transactionCheckMax.
    """
    with exit_on_bad_settings():
        options = {} if namesrv is None else {"namesrvAddr": namesrv}
        options |= parse_options(TxnCheckerSettings, ctx.args)
        settings = load(TxnCheckerSettings, prefix="COMETMQ_TXN_CHECKER", file=config, cli=options)
    if print_settings:
        typer.echo(settings.as_table(), nl=False)
        return
    log = configure_log("txn-checker", level=log_level, json=log_json)
    warn_unknown(settings, log)

    build = partial(TxnCheckerApp, settings)
    serve(build, settings, log=log)
