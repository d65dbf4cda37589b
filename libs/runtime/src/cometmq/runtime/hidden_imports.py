# SPDX-License-Identifier: Apache-2.0
"""Import a library as if one of its installed optional dependencies were missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden_module(name: str) -> Iterator[None]:
    """Make `import name` fail inside the block, as if the module were not installed.

    None in `sys.modules` is the import system's documented way to block a module. If the
    module is already loaded, do nothing, because its import can no longer be avoided.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented, but not in its type
    try:
        yield
    finally:
        del sys.modules[name]
