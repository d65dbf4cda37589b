# SPDX-License-Identifier: Apache-2.0
"""What a view is: arguments, the rows that it asks for, and their columns.

A subclass of `View` declares one: its fields are the arguments, its docstring is the help. The verb
of the command line, the table of the console, their JSON and the tool of MCP are derived from it.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from cometmq.client.admin import AdminClient
from cometmq.insight import times
from cometmq.insight.changes.change import Declared
from cometmq.insight.model import Snapshot, Unknown, Unreachable

R = TypeVar("R")
_SAFE = "/:@,;+*$!~'()-._"


class Column(NamedTuple, Generic[R]):
    """One column: how to read it, and how to write it (a key of the console's `cells.FORMATS`)."""

    key: str
    """The key in JSON, and in addresses that sort by the column."""
    title: str
    value: Callable[[R], Any]
    kind: str = "text"
    link: Callable[[R], str] | None = None
    """The page to which the cell leads: an `address`, or empty."""
    tone: Callable[[R], str] | None = None
    """`good`, `warn`, `bad` or empty."""
    help: str = ""
    needs: str = ""
    """The least role that sees the column, such as one with links to changes."""
    is_content: bool = False
    """Whether only those see it who may read the messages of the row's topic."""
    is_page_only: bool = False
    is_rare: bool = False
    """Whether a page leaves it out if it is unknown for all rows."""


class Facts(NamedTuple):
    """Where a view gets its figures."""

    admin: AdminClient
    snapshot: Callable[[], Awaitable[Snapshot]]


class Found(NamedTuple):
    """The answer to a view."""

    rows: Sequence[Any]
    notes: Sequence[str] = ()
    """What is left out, and why."""
    empty: str = "there is nothing"
    """What to say instead of a table without rows."""
    snapshot: Snapshot | None = None
    """Where the rows come from, if not from requests of their own."""


class View(Declared, frozen=True, kw_only=True):
    """A list of facts; its fields are its arguments."""

    columns: ClassVar[Sequence[Column[Any]]] = ()
    sort: ClassVar[str] = ""
    """The order on a page: the key of a column, with `-` in front for a descending one."""

    async def ask(self, facts: Facts) -> Found:
        """Return the rows; raise CometError for arguments that cannot be."""
        raise NotImplementedError

    @classmethod
    def text_of(cls, row: Any) -> str:
        """Return the texts of a row, in which filters look."""
        found = (it.value(row) for it in cls.columns if not it.is_content and not it.needs)
        return " ".join(
            ", ".join(map(str, it)) if isinstance(it, list) else it
            for it in found
            if isinstance(it, str | list)
        )

    @classmethod
    def sorted(cls, rows: Iterable[Any]) -> list[Any]:
        """Return rows in the usual order; unknown values are last."""
        column = next(it for it in cls.columns if it.key == cls.sort.removeprefix("-"))
        return in_order(rows, column.value, is_descending=cls.sort.startswith("-"))

    @classmethod
    def topic_of(cls, row: Any) -> str:
        """Return the topic whose message a row describes; empty if it describes none."""
        return ""

    @classmethod
    def object_of(cls, row: Any, columns: Sequence[Column[Any]]) -> dict[str, Any]:
        """Return a row for JSON, with these columns."""
        return {it.key: _plain(it, row) for it in columns if not it.is_page_only}


def in_order(rows: Iterable[R], value: Callable[[R], Any], *, is_descending: bool) -> list[R]:
    """Return rows by a value; unknown ones come last in both directions."""
    known, unknown = [], []
    for row in rows:
        found = value(row)
        if found is None or isinstance(found, Unknown | Unreachable):
            unknown.append(row)
        else:
            known.append((_comparable(found), row))
    known.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [row for _, row in known] + unknown


def _comparable(value: Any) -> tuple[int, Any]:
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, list | tuple):
        return 1, ", ".join(map(str, value)).casefold()
    return 1, str(value).casefold()


def _plain(column: Column[Any], row: Any) -> Any:
    value = column.value(row)
    is_time = column.kind == "moment" and isinstance(value, int)
    return times.shown(value) if is_time else value


def address(path: str, **args: object) -> str:
    """Return the address of a page of the console, below its prefix, with its arguments; None and
    empty ones are left out.
    """
    given = {key: str(value) for key, value in args.items() if value not in (None, "")}
    query = urlencode(given, quote_via=quote)
    return quote(path, safe=_SAFE) + (f"?{query}" if query else "")
