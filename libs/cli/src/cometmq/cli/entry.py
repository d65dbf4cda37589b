# SPDX-License-Identifier: Apache-2.0
"""Entry point of `cometmq`: Ctrl-C prints no traceback, even while modules are being imported."""

import signal
import sys
from importlib import import_module

from cometmq.runtime.process.garbage import no_collections

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        with no_collections():
            commands = import_module("cometmq.cli.main")
        commands.main()
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 raises RuntimeError from an interrupt that strikes while a class is made, as
        # in the imports of `ssl` and of its enumerations.
        if not any(isinstance(it, KeyboardInterrupt) for it in (error, error.__cause__)):
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the same request, sent again
        sys.exit(EXIT_INTERRUPTED)
