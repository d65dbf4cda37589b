# SPDX-License-Identifier: Apache-2.0
"""Suggestions for mistyped names."""

from collections.abc import Iterable
from importlib import import_module


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, or None if none is similar enough."""
    difflib = import_module("difflib")  # imported only after a mistake: it costs 4 ms
    by_lower = {other.lower(): other for other in sorted(known)}
    found: list[str] = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or an empty string if no name is similar."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean {found}?"
