# SPDX-License-Identifier: Apache-2.0
"""Importing a library without an optional dependency of it that happens to be installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Make `import name` fail inside the block, as if it were not installed.

    None in `sys.modules` is the import system's own way to say so. A module that is loaded
    already stays visible: hiding it would save nothing.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented, but not in its type
    try:
        yield
    finally:
        del sys.modules[name]
