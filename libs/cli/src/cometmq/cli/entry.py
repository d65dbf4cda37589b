# SPDX-License-Identifier: Apache-2.0
"""Entry point of `cometmq`: what must precede all other imports.

Ctrl-C prints no traceback, even while modules are being imported. gRPC may print only errors,
because any peer can cause lines of lower levels, for example by a failed TLS handshake. gRPC reads
the variable for this when it is imported.
"""

import os
import signal
import sys
from importlib import import_module

from cometmq.runtime.process.garbage import no_collections

EXIT_INTERRUPTED = 130


def set_home() -> None:
    """Give a user without a name the home that Docker gives it; Path.home() would raise.

    Kubernetes and OpenShift run containers as any user id, and `setpriv` or cron without HOME.
    """
    if os.path.expanduser("~") == "~":  # noqa: PTH111  # Path raises
        os.environ["HOME"] = "/"  # noqa: TID251  # of the system, not of cometmq


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # noqa: TID251  # of gRPC, not of cometmq
    set_home()
    try:
        with no_collections():
            commands = import_module("cometmq.cli.main")
        try:
            commands.main()
        except SystemExit:
            # The interpreter still waits for threads; an interrupt there would be a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python 3.11 raises RuntimeError from an interrupt that strikes while a class is made, as
        # in the imports of `ssl` and of its enumerations.
        if not any(isinstance(it, KeyboardInterrupt) for it in (error, error.__cause__)):
            raise
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the same request, sent again
        sys.exit(EXIT_INTERRUPTED)
