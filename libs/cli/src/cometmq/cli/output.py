# SPDX-License-Identifier: Apache-2.0
"""Output of commands: tables for terminals and JSON for scripts, from the same rows."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.access import json_or_global
from cometmq.cli.option_sets import opt
from cometmq.cli.outcome import MISSING
from cometmq.cli.say import say

AsJson = Annotated[bool, opt("--json", "Print JSON for scripts.", callback=json_or_global)]

Cell = str | int | float | bool | None | list[str] | list[int]
"""A value of a row or a fact; a list is an array in JSON."""
STDOUT: Final = "-"
"""The name of a file that means standard output."""

_encoder = msgspec.json.Encoder(enc_hook=str)


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    as_json: bool,
    title: str = "",
    empty: str = "",
    piped_chars: int | None = None,
) -> None:
    """Print a table or, in JSON, a list of objects with snake_case keys.

    In a pipe or a file, each row is one line of any width. `piped_chars` limits the width for
    tables of sentences, which are read by people even there.

    If there are no rows, `empty` is printed on standard error; it states what was not found.
    """
    if as_json:
        print_json(as_objects(columns, rows))
        return
    _tables().print_rows(columns, rows, title, piped_chars=piped_chars)
    if empty and not rows and not MISSING:
        print_notes([empty])


def print_facts(facts: Mapping[str, Cell], *, as_json: bool, title: str = "") -> None:
    """Print names and values or, in JSON, one object."""
    if as_json:
        print_json(dict(facts))
    else:
        _tables().print_facts(facts, title)


def print_notes(lines: Iterable[str]) -> None:
    """Print warnings on standard error after the output, so that they do not mix with JSON."""
    sys.stdout.flush()
    print_errors(lines)


def print_errors(lines: Iterable[str]) -> None:
    """Print lines on standard error, even if standard output cannot be written."""
    for line in lines:
        say(f"cometmq: {line}", err=True)


def column_named(wanted: str, columns: Sequence[str]) -> str:
    """Return the column of a --sort, whose case does not matter; raise BadParameter for others."""
    for column in columns:
        if column.lower() == wanted.lower():
            return column
    raise typer.BadParameter(f"--sort {wanted}: the columns are {', '.join(columns).lower()}")


def sorted_rows(
    rows: Iterable[Sequence[Cell]], at: int, *, is_reversed: bool = False
) -> list[Sequence[Cell]]:
    """Return rows by their column `at`: numbers from the largest, texts from A, unknown ones last.

    Rows with the same cell are in the order of their first column.
    """
    found = sorted(rows, key=lambda it: str(it[0]))
    present = [it for it in found if it[at] is not None]
    is_number = all(isinstance(it[at], int | float) for it in present)
    present.sort(
        key=lambda it: it[at] if is_number else str(it[at]),  # type: ignore[arg-type,return-value]
        reverse=is_number is not is_reversed,
    )
    return present + [it for it in found if it[at] is None]


def as_objects(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[dict[str, Cell]]:
    """Return rows as objects keyed by the columns in snake_case."""
    keys = [column.lower().replace(" ", "_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def print_json(value: object) -> None:
    """Print one indented JSON document."""
    say(msgspec.json.format(_encoder.encode(value), indent=2))


def _tables() -> Any:
    return import_module("cometmq.cli.tables")  # rich: 60 ms that scripts save
