# SPDX-License-Identifier: Apache-2.0
"""Imports with a module hidden."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Make `import name` fail inside the block, as if the module were not installed.

    None in `sys.modules` is the documented way to block the import of a module. If the module is
    already loaded, this function does nothing, because the import can no longer be prevented.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented, but not in its type
    try:
        yield
    finally:
        del sys.modules[name]
