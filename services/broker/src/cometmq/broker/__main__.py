# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.broker [FILE]`: a broker with the settings of a file and its environment."""

import sys
from pathlib import Path

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.runtime import logging
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load


async def main(stop: Stop) -> None:
    """Read the settings and serve until asked to stop."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    settings = load(BrokerSettings, prefix="COMETMQ_BROKER", file=file)
    log = logging.get("broker")
    app = BrokerApp(settings, log=log, clock=SystemClock(), config_path=file)
    await app.start()
    stop.serving()
    try:
        await stop.wait()
    finally:
        await app.stop()


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=logging.get("broker")))
