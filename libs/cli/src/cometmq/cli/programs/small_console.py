# SPDX-License-Identifier: Apache-2.0
"""Starts the console of a suite with as few modules as possible."""

import sys
from importlib import import_module


def import_msgspec() -> None:
    """Import msgspec without typing_extensions: it prefers them to the equal parts of typing, and
    they take 0.3 MB.
    """
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # as if not installed
    import_module("msgspec")
    del sys.modules["typing_extensions"]  # the packages for OpenID Connect need them


if __name__ == "__main__":
    import_msgspec()
    sys.exit(import_module("cometmq.cli.programs.suite_console").main())
