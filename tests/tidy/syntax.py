# SPDX-License-Identifier: Apache-2.0
"""Walks the statements of a module and leaves out their expressions, most of its nodes."""

import ast
from collections.abc import Iterator


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements in a node, however deep, with the branches that contain them."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)
