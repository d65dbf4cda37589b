# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.txnchecker`: a txn-checker with the settings of its environment."""

import sys

from cometmq.runtime import logging
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load
from cometmq.txnchecker.app import serve
from cometmq.txnchecker.settings import TxnCheckerSettings


async def main(stop: Stop) -> None:
    """Read the environment and serve."""
    settings = load(TxnCheckerSettings, prefix="COMETMQ_TXN_CHECKER")
    await serve(settings, stop, log=logging.get("txn-checker"), clock=SystemClock())


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=logging.get("txn-checker")))
