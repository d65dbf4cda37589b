# SPDX-License-Identifier: Apache-2.0
"""`cometmq txn-checker`: run a transaction check service in the foreground."""

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
from cometmq.runtime.settings import Loaded, load
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.settings import TxnCheckerSettings

app = typer.Typer(add_completion=False)


@app.command(context_settings=OWN_OPTIONS)
@with_option_sets
def txn_checker(
    ctx: typer.Context,
    config: ConfigFile = None,
    namesrv: Namesrv = None,
    *,
    running: RunOptions,
) -> None:
    """Run a transaction check service in the foreground; SIGTERM and Ctrl-C stop it.

    Every setting is also an option: --transaction-check-max 5 sets transactionCheckMax.

    \b
    EXAMPLE
      cometmq txn-checker -c checker.conf -n mq1:9876
    """

    def settings() -> Loaded[TxnCheckerSettings]:
        return load(
            TxnCheckerSettings,
            prefix="COMETMQ_TXN_CHECKER",
            file=config,
            cli=named(namesrv),
            args=ctx.args,
        )

    run_program(
        "txn-checker",
        settings,
        lambda loaded: partial(TxnCheckerApp, loaded),
        config=config,
        running=running,
    )
