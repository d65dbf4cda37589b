# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.txn_checker`: run a txn-checker configured by its environment."""

import sys
from functools import partial

from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.settings import TxnCheckerSettings

log = logging.get("txn-checker")


async def main(stop: Stop) -> None:
    settings = load(TxnCheckerSettings, prefix="COMETMQ_TXN_CHECKER")
    build = partial(TxnCheckerApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
