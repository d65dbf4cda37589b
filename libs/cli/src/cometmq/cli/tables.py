# SPDX-License-Identifier: Apache-2.0
"""Tables for human readers; `output` imports this module only to print a table."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final, Literal

from rich.cells import cell_len

from cometmq.remoting.visible import visible

if TYPE_CHECKING:
    from rich.table import Table

UNBOUNDED_CHARS: Final = 10_000
PADDING: Final = 2
"""Spaces between columns."""
FOLDED_CHARS_MIN: Final = 16
"""Minimum width of a folded column."""

STYLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ok", "OK", "ONLINE"), "green"),
    **dict.fromkeys(("warning", "WARNING", "read-only", "no elector", "lacks copies"), "yellow"),
    **dict.fromkeys(
        ("critical", "CRITICAL", "error", "takes no messages", "cannot follow", "no master"), "red"
    ),
}
"""The colours of cells that are a state, by the text before its reason."""

Cell = str | int | float | bool | None | list[str] | list[int]


def print_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    title: str,
    *,
    piped_chars: int | None = None,
) -> None:
    """Print a table with right-aligned numbers.

    On a terminal that is too narrow, and in a pipe or a file above `piped_chars`, headings and
    cells wrap at spaces, then the widest column wraps anywhere; if that is not enough, each row
    becomes a block of names and values. Nothing is truncated, so ids can still be copied.
    """
    shown = [[_shown(cell).replace("\n", "\\n") for cell in row] for row in rows]
    numbers = [
        bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))
    ]
    piped_max = piped_chars or UNBOUNDED_CHARS
    if not sys.stdout.isatty() and _print_plain([columns, *shown], numbers, title, piped_max):
        return
    _print_rich_rows(columns, rows, shown, title, piped_chars or sys.maxsize)


def _print_rich_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    shown: Sequence[Sequence[str]],
    title: str,
    piped_max: int,
) -> None:
    from rich.console import Console  # noqa: PLC0415  # 60 ms that pipes and files save
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    texts = [[name, *(row[index] for row in shown)] for index, name in enumerate(columns)]
    widths = _layout(texts, Console().width if sys.stdout.isatty() else piped_max)
    if widths is None:
        _print_blocks(columns, rows, title)
        return
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(rows) and all(_is_number(row[index]) for row in rows)
        side: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(column, justify=side, overflow="fold", width=widths[index])
    for texts_of_row in shown:
        table.add_row(*(Text(text, style=_style(text)) for text in texts_of_row))
    _print(table, title)


def _style(text: str) -> str:
    """Return the colour of a state; rich leaves it out if the output is no terminal, or NO_COLOR is
    set.
    """
    return STYLES.get(text.partition(":")[0], "")


def _layout(texts: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return the column widths, or None if the widest column would be too narrow to read."""
    natural = [max(map(cell_len, column)) for column in texts]
    widths = [
        max(cell_len(word) for text in column for word in text.split() or [""]) for column in texts
    ]
    spare = width - sum(widths) - PADDING * (len(widths) - 1)
    if spare < 0:
        widest = widths.index(max(widths))
        widths[widest] += spare
        return widths if widths[widest] >= FOLDED_CHARS_MIN else None
    while spare and (narrow := [at for at, it in enumerate(natural) if widths[at] < it]):
        share = max(1, spare // len(narrow))  # equal shares, so that no column becomes a tower
        for at in narrow:
            more = min(share, spare, natural[at] - widths[at])
            widths[at] += more
            spare -= more
    return widths


def _print_blocks(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> None:
    if title:
        sys.stdout.write(f"{visible(title)}\n\n")
    for number, row in enumerate(rows):
        if number:
            sys.stdout.write("\n")
        print_facts(dict(zip(columns, row, strict=True)), "")


def print_facts(facts: Mapping[str, Cell], title: str) -> None:
    """Print names and values."""
    names = [visible(name.replace("_", " ")) for name in facts]
    values = [_shown(value).split("\n") for value in facts.values()]
    pairs = zip(names, values, strict=True)
    lines = [
        (name if at == 0 else "", one) for name, value in pairs for at, one in enumerate(value)
    ]
    if not sys.stdout.isatty() and _print_plain(lines, (False, False), title):
        return
    _print_rich_facts(facts, title)


def _print_rich_facts(facts: Mapping[str, Cell], title: str) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(
            Text(visible(name.replace("_", " ")), style="bold", no_wrap=True),
            Text(_shown(value), overflow="fold"),
        )
    _print(table, title)


def _print_plain(
    lines: Sequence[Sequence[str]],
    numbers: Iterable[bool],
    title: str,
    width_max: int = UNBOUNDED_CHARS,
) -> bool:
    """Print a table to a pipe or a file, byte for byte as rich does, in a hundredth of the time.

    Returns False, and prints nothing, for what rich prints in another way: columns of no width,
    tabs, names of several lines, and whatever is wider than `width_max`.
    """
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    width = max(cell_len(title), sum(widths) + PADDING * (len(widths) - 1))
    has_tab = "\t" in title or any("\t" in text for line in lines for text in line)
    if not all(widths) or not widths or width > width_max or has_tab:
        return False
    if any("\n" in line[0] for line in lines):
        return False
    layout = list(zip(widths, numbers, strict=True))
    printed = visible(title).split("\n") if title else []
    for line in lines:
        cells = []
        for text, (column_width, is_number) in zip(line, layout, strict=True):
            space = " " * (column_width - cell_len(text))
            cells.append(space + text if is_number else text + space)
        printed.append((" " * PADDING).join(cells))
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in printed))
    return True


def _print(table: "Table", title: str) -> None:
    """Print to the width of the terminal; to a pipe or a file, without a limit or padding.

    The title is not the table's own, because rich would wrap it to the width of the columns.
    """
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    parts = [Text(visible(title), style="table.title"), table] if title else [table]
    if sys.stdout.isatty():
        Console().print(*parts, sep="\n")
        return
    text = StringIO()
    Console(file=text, width=UNBOUNDED_CHARS, no_color=True, force_terminal=False).print(
        *parts, sep="\n"
    )
    for line in text.getvalue().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list):
        return visible(",".join(map(str, cell))) or "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else visible(cell)
