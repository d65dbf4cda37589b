# SPDX-License-Identifier: Apache-2.0
"""Suggestions for mistyped names."""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec

_SHOWN_MAX: Final = 3
_BEGINNING_MIN: Final = 3
"""Fewer characters begin too many names."""
_LESS_SIMILAR: Final = 0.6
"""The lowest similarity of suggested names: that of `timeout` and `send_timeout_ms`."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name, else the only one that begins like this, or None."""
    difflib = import_module("difflib")  # imported only after a mistake: it costs 4 ms
    by_lower = {other.lower(): other for other in sorted(known)}
    found: list[str] = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8)
    if not found and len(name) >= _BEGINNING_MIN:
        found = [other for other in by_lower if other.startswith(name.lower())]
    return by_lower[found[0]] if len(found) == 1 else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or else a list of less similar names, or an empty string."""
    known = list(known)
    if found := did_you_mean(name, known):
        return found
    difflib = import_module("difflib")
    names = difflib.get_close_matches(name.lower(), known, n=_SHOWN_MAX, cutoff=_LESS_SIMILAR)
    *others, last = names or [""]
    if others:
        return f"; similar ones are {', '.join(others)} and {last}"
    return f"; a similar one is {last}" if last else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?`, or an empty string if no name is similar."""
    found = closest(name, known)
    return "" if found is None else f"; did you mean {found}?"


class SpelledFields(msgspec.StructMeta):
    """The metaclass of structs that applications make; it explains an unknown keyword argument.

    msgspec's own error names neither the class nor its fields. A call takes 0.3 to 0.7 us longer,
    so structs that the client itself makes for each message do not use this metaclass. Decoding
    does not call it.
    """

    if not TYPE_CHECKING:  # type checkers would take this signature, which accepts any field

        def __call__(cls, *args: object, **fields: object) -> object:  # noqa: N805
            """Return the struct; raise a TypeError with a suggestion for an unknown field."""
            try:
                return super().__call__(*args, **fields)
            except TypeError as error:
                wrong = [name for name in fields if name not in cls.__struct_fields__]
                if not wrong:
                    raise
                raise TypeError(_no_field(cls, wrong[0])) from error


def _no_field(kind: SpelledFields, name: str) -> str:
    fields = kind.__struct_fields__
    advice = nearest(name, fields) or f": its fields are {', '.join(fields)}"
    return f"{kind.__name__} has no field {name}{advice}"
