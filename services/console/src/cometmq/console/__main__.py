# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.console`: run a console configured by its environment."""

import sys
from functools import partial

from cometmq.console.app import ConsoleApp
from cometmq.console.settings import PREFIX, ConsoleSettings
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

log = logging.get("console")


async def main(stop: Stop) -> None:
    settings = load(ConsoleSettings, prefix=PREFIX)
    build = partial(ConsoleApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
