# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.operator`: run an operator configured by its environment."""

import sys
from functools import partial

from cometmq.operator.app import OperatorApp
from cometmq.operator.settings import PREFIX, OperatorSettings
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

log = logging.get("operator")


async def main(stop: Stop) -> None:
    settings = load(OperatorSettings, prefix=PREFIX)
    build = partial(OperatorApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log, freezes=False))
