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
    given_options,
    run_program,
)
from cometmq.runtime.settings import Loaded, load
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

    def settings() -> Loaded[TxnCheckerSettings]:
        options = given_options(ctx, TxnCheckerSettings, namesrv)
        return load(TxnCheckerSettings, prefix="COMETMQ_TXN_CHECKER", file=config, cli=options)

    run_program(
        "txn-checker",
        settings,
        lambda loaded: partial(TxnCheckerApp, loaded),
        config=config,
        print_settings=print_settings,
        log_level=log_level,
        log_json=log_json,
    )
