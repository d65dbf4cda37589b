# SPDX-License-Identifier: Apache-2.0
"""Tables that the server sorts, filters and divides into pages."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple

from markupsafe import Markup

from cometmq.console.web.cells import NUMERIC
from cometmq.insight.views.view import Column, R, in_order

PAGE_SIZES: Final = (25, 50, 100, 250, 500)
SIZE_DEFAULT: Final = 50


class Cells(NamedTuple, Generic[R]):
    """The HTML around the cells of a column, which does not depend on the row."""

    column: Column[R]
    begin: Markup
    """The HTML before the tone."""
    middle: Markup
    """The HTML between the tone and the content."""
    end: Markup


def cells_of(columns: Sequence[Column[R]]) -> list[Cells[R]]:
    """Return the HTML around the cells of each column; the first column is the heading of
    the row.
    """
    found = []
    for place, column in enumerate(columns):
        kinds = "num " if (column.kind in NUMERIC) else ""
        if column.kind in {"prose", "short", "id"}:
            kinds += f"{column.kind} "
        begin, end = Markup("<td"), Markup("</td>")
        if not place:
            begin, end = Markup('<th scope="row"'), Markup("</th>")
        found.append(
            Cells(
                column,
                begin + Markup(' class="{}').format(kinds),
                Markup('" data-title="{}">').format(column.title),
                end,
            )
        )
    return found


class Order(NamedTuple):
    """The sort key, filter and page in a request; an empty sort key means the default of
    the table.
    """

    sort: str = ""
    find: str = ""
    page: int = 1
    size: int = SIZE_DEFAULT


class Table(NamedTuple, Generic[R]):
    """The rows of a table that one page shows."""

    columns: Sequence[Column[R]]
    rows: Sequence[R]
    total: int
    """The number of rows before filtering."""
    found: int
    """The number of rows that match the filter."""
    page: int
    pages: int
    size: int
    sort: str
    """The key of a column; with `-` in front, descending."""
    find: str
    path: str
    args: dict[str, str]
    """The arguments of the request that do not belong to the table."""

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size

    def heading_sort(self, column: Column[R]) -> str:
        """Return the sort key for the link in the heading."""
        if self.sort == column.key:
            return f"-{column.key}"
        if self.sort == f"-{column.key}":
            return column.key
        return f"-{column.key}" if (column.kind in NUMERIC) else column.key

    def direction(self, column: Column[R]) -> str:
        """Return the value of `aria-sort`."""
        if self.sort.removeprefix("-") != column.key:
            return "none"
        return "descending" if self.sort.startswith("-") else "ascending"

    def with_args(self, **changes: str) -> dict[str, str]:
        """Return the arguments of this table with changes."""
        own = {"sort": self.sort, "find": self.find, "size": str(self.size), "page": "1"}
        return {**self.args, **{key: text for key, text in {**own, **changes}.items() if text}}


def table(
    rows: Iterable[R],
    columns: Sequence[Column[R]],
    order: Order,
    *,
    default: str,
    search: Callable[[R], str],
    path: str = "",
    args: dict[str, str] | None = None,
) -> Table[R]:
    """Sort, filter and cut rows; `search` returns the text in which the filter looks.

    The filter's words must all occur, in any case. Unknown values come last in both directions; an
    unknown sort key counts as the default.
    """
    everything = list(rows)
    needles = order.find.casefold().split()
    kept = [row for row in everything if _matches(search(row), needles)] if needles else everything
    keys = {column.key: column for column in columns}
    sort = order.sort if order.sort.removeprefix("-") in keys else default
    value, is_descending = keys[sort.removeprefix("-")].value, sort.startswith("-")
    kept = in_order(kept, value, is_descending=is_descending)
    size = order.size if order.size in PAGE_SIZES else SIZE_DEFAULT
    pages = max(1, -(-len(kept) // size))
    page = min(max(1, order.page), pages)
    return Table(
        columns, kept[(page - 1) * size : page * size], len(everything), len(kept), page, pages,
        size, sort, order.find, path, args or {},
    )  # fmt: skip


def _matches(text: str, needles: Sequence[str]) -> bool:
    folded = text.casefold()
    return all(needle in folded for needle in needles)
