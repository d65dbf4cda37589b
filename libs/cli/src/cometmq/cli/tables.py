# SPDX-License-Identifier: Apache-2.0
"""Tables for people; loaded by `output` only when one is printed."""

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBOUNDED_CHARS: Final = 10_000

Cell = str | int | float | bool | None


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> None:
    """Print rows under their columns, numbers to the right."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(_is_number(row[index]) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    _print(table)


def print_facts(facts: Mapping[str, Cell], title: str) -> None:
    """Print names and values."""
    table = Table(
        title=title or None, title_justify="left", box=None, show_header=False, pad_edge=False
    )
    for name, value in facts.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(_shown(value)))
    _print(table)


def _print(table: Table) -> None:
    """Print to the terminal's width; into a pipe or file without any, and without padding."""
    if sys.stdout.isatty():
        Console().print(table)
        return
    text = StringIO()
    Console(file=text, width=UNBOUNDED_CHARS).print(table)
    for line in text.getvalue().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
