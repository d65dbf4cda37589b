# SPDX-License-Identifier: Apache-2.0
"""Guesses what a mistyped name was meant to be."""

from collections.abc import Iterable
from importlib import import_module


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelt almost like this one; None if there is none."""
    difflib = import_module("difflib")  # 4 ms that only mistakes pay
    by_lower = {other.lower(): other for other in sorted(known)}
    found: list[str] = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or nothing if no name is close."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean {found}?"
