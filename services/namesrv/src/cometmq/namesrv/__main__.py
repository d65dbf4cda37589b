# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.namesrv`: a name server with the settings of its environment."""

import sys

from cometmq.namesrv.app import serve
from cometmq.namesrv.settings import load_namesrv
from cometmq.runtime import logging
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.service import Stop, run


async def main(stop: Stop) -> None:
    """Read the environment and serve."""
    settings = load_namesrv(None, {})
    await serve(settings, stop, log=logging.get("namesrv"), clock=SystemClock())


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=logging.get("namesrv")))
