# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.elector`: run an elector configured by its environment."""

import sys
from functools import partial

from cometmq.elector.app import ElectorApp
from cometmq.elector.settings import PREFIX, ElectorSettings
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

log = logging.get("elector")


async def main(stop: Stop) -> None:
    settings = load(ElectorSettings, prefix=PREFIX)
    build = partial(ElectorApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
