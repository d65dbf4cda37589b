# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.namesrv`: run a name server configured by its environment."""

import sys
from functools import partial

from cometmq.namesrv.app import NamesrvApp
from cometmq.namesrv.settings import load_namesrv
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run

log = logging.get("namesrv")


async def main(stop: Stop) -> None:
    settings = load_namesrv()
    build = partial(NamesrvApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
