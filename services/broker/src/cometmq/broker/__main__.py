# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.broker [FILE]`: run a broker configured by a file and its environment."""

import sys
from functools import partial
from pathlib import Path

from cometmq.broker.app import BrokerApp
from cometmq.broker.settings import BrokerSettings
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load
from cometmq.runtime.wrong_file import refuse_wrong_file

log = logging.get("broker")


async def main(stop: Stop) -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    settings = load(BrokerSettings, prefix="COMETMQ_BROKER", file=file)
    refuse_wrong_file("broker", settings, file)
    build = partial(BrokerApp, settings, config_path=file)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
