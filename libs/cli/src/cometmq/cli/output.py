# SPDX-License-Identifier: Apache-2.0
"""What commands print: tables for people, JSON for scripts, from the same rows."""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

Cell = str | int | float | bool | None
_encoder = msgspec.json.Encoder(enc_hook=str)


def print_rows(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, as_json: bool, title: str = ""
) -> None:
    """Print rows under their columns; JSON is a list of objects with snake_case keys."""
    if as_json:
        keys = [column.lower().replace(" ", "_") for column in columns]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(_is_number(row[index]) for row in rows)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    console().print(table)


def print_facts(facts: Mapping[str, Cell], *, as_json: bool, title: str = "") -> None:
    """Print names and values; JSON is one object."""
    if as_json:
        print_json(dict(facts))
        return
    table = Table(title=title or None, title_justify="left", box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text(_shown(value)))
    console().print(table)


def print_json(value: object) -> None:
    """Print one JSON document and a line end."""
    typer.echo(msgspec.json.format(_encoder.encode(value), indent=2).decode())


def console() -> Console:
    """Return the console of standard output; a pipe is not cut to 80 columns."""
    return Console() if sys.stdout.isatty() else Console(width=10_000, soft_wrap=True)


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
