# SPDX-License-Identifier: Apache-2.0
"""Entry point of `cometmq`: Ctrl-C prints no traceback, even while modules are being imported."""

import sys
from importlib import import_module

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        import_module("cometmq.cli.main").main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
