# SPDX-License-Identifier: Apache-2.0
"""`python -m cometmq.exporter`: run an exporter configured by its environment."""

import sys
from functools import partial

from cometmq.exporter.app import ExporterApp
from cometmq.exporter.settings import PREFIX, ExporterSettings
from cometmq.runtime import logging
from cometmq.runtime.program import configured_program
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import load

log = logging.get("exporter")


async def main(stop: Stop) -> None:
    settings = load(ExporterSettings, prefix=PREFIX)
    build = partial(ExporterApp, settings)
    await configured_program(build, settings, log=log)(stop)


if __name__ == "__main__":
    logging.configure()
    sys.exit(run(main, log=log))
