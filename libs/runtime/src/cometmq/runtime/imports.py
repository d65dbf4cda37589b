# SPDX-License-Identifier: Apache-2.0
"""Unusual ways to import: with a module hidden or replaced."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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


@contextmanager
def replaced_module(name: str, *attributes: str) -> Iterator[None]:
    """Import inside the block without a module that a package imports for others only.

    Its attributes are None, also in the package, unless the module is already loaded. Afterwards,
    the module itself can be imported as usual.
    """
    if name in sys.modules:
        yield
        return
    module = ModuleType(name)
    module.__dict__.update(dict.fromkeys(attributes))
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]
