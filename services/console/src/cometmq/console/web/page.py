# SPDX-License-Identifier: Apache-2.0
"""What a page is: a stable URL, data that is also JSON, the command that gives it, and its age."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.console.desk import Desk
from cometmq.console.login.accounts import account_why_not
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import Session
from cometmq.console.web.problems import Problem, bad
from cometmq.console.web.tables import SIZE_DEFAULT, Order, Table, table
from cometmq.insight.model import Snapshot, Unknown
from cometmq.insight.reading import ReadingAdmin
from cometmq.insight.times import parsed
from cometmq.insight.views.view import Column, R, address

NOT_READABLE: Final = Unknown("you may not read messages of this topic")
"""Shown instead of the parts of a message."""
TEXT_MAX = 1_000


class View:
    """A request for a page, with access to its arguments and to the cluster."""

    def __init__(
        self,
        desk: Desk,
        request: Request,
        user: User,
        session: Session | None,
        args: Mapping[str, list[str]],
    ) -> None:
        self.desk = desk
        self.request = request
        self.user = user
        self.session = session
        self._args = args
        self._reader: ReadingAdmin | None = None

    # -- arguments ----------------------------------------------------------------------------

    def text(self, name: str, default: str = "", *, length_max: int = TEXT_MAX) -> str:
        """Return an argument without surrounding spaces."""
        text = (self._args.get(name) or [default])[-1].strip() or default
        if len(text) > length_max:
            raise bad(f"{name} is too long: give at most {length_max} characters")
        return text

    def raw(self, name: str) -> str:
        """Return an argument as it was sent, of any length."""
        return (self._args.get(name) or [""])[-1]

    def needed(self, name: str) -> str:
        """Return an argument that must be given."""
        text = self.text(name)
        if not text:
            raise bad(f"{name} is missing in the address")
        return text

    def number(self, name: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return a whole number between the bounds."""
        text = self.text(name)
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise bad(f"{name} must be a whole number, not {text!r}", field=name) from None
        if not low <= value <= high:
            raise bad(f"{name} must be between {low} and {high}, not {value}", field=name)
        return value

    def moment(self, name: str, *, now_ms: int, words: Collection[str] = ()) -> int | None:
        """Return a time in milliseconds, or None if none is given; see `times.parsed`."""
        text = self.text(name)
        try:
            return parsed(text, now_ms=now_ms, words=words) if text else None
        except InvalidArgument as error:
            raise bad(f"{name}: {error}", field=name) from error

    def without(self, name: str) -> "View":
        """Return the same request without an argument."""
        args = {key: values for key, values in self._args.items() if key != name}
        return View(self.desk, self.request, self.user, self.session, args)

    def is_set(self, name: str) -> bool:
        """Return whether a check box is ticked."""
        return self.text(name) in {"1", "on", "true", "yes"}

    def many(self, name: str, *, count_max: int = 1_000) -> list[str]:
        """Return all values of an argument."""
        found = list(self._args.get(name) or ())
        if len(found) > count_max:
            raise bad(f"at most {count_max} values of {name} at a time")
        return found

    def pairs(self) -> list[tuple[str, str]]:
        """Return all arguments with all their values, for the form that confirms a plan."""
        return [(name, value) for name, values in self._args.items() for value in values]

    def given(self) -> dict[str, str]:
        """Return the last value of each argument."""
        return {name: values[-1] for name, values in self._args.items() if values}

    # -- answers ------------------------------------------------------------------------------

    def table(
        self,
        rows: Any,
        columns: "list[Column[R]]",
        *,
        default: str,
        search: Callable[[R], str],
        keep: tuple[str, ...] = (),
        name: str = "",
    ) -> "Table[R]":
        """Return a table, sorted, filtered and cut to one page according to the request's
        arguments.

        `keep` names further arguments of the page; `name` distinguishes several tables.
        """
        order = Order(
            self.text(f"{name}sort"),
            self.text(f"{name}find"),
            self.number(f"{name}page", 1, high=1_000_000),
            self.number(f"{name}size", SIZE_DEFAULT),
        )
        kept = {key: self.text(key) for key in keep if self.text(key)}
        path = self.href(self.request["path"])
        return table(rows, columns, order, default=default, search=search, path=path, args=kept)

    def href(self, path: str, **args: object) -> str:
        """Return the address of a page below the prefix."""
        return self.desk.prefix + address(path, **args)

    async def snapshot(self) -> Snapshot:
        """Return the newest snapshot, at most a few seconds old."""
        return await self.desk.snapshot()

    async def why_unreadable(self, topic: str) -> str:
        """Return why the user may not read messages of a topic; empty if they may."""
        desk, session = self.desk, self.session
        if session is not None and session.credentials is not None:
            return await account_why_not(desk.reader, session, topic, desk.log)
        return desk.rights.why_not(self.user, topic)

    async def readable_only(self, topics: Iterable[str]) -> set[str]:
        """Return the topics of which the user may read messages."""
        return {it for it in topics if not await self.why_unreadable(it)}

    async def check_readable(self, topic: str) -> None:
        """Raise Problem if the user may not read messages of a topic."""
        if why := await self.why_unreadable(topic):
            raise Problem(HTTPStatus.FORBIDDEN, why, title="You may not read these messages")

    def admin(self) -> AdminClient:
        """Return the request's client for reading, which leaves out brokers that do not answer."""
        if self._reader is None:
            self._reader = self.desk.reader.for_page()
        return self._reader

    @property
    def unanswered(self) -> Mapping[str, str]:
        """The brokers that this request's client has left out, with the reasons."""
        return {} if self._reader is None else self._reader.unanswered


class Download(NamedTuple):
    """Bytes that the browser saves as a file."""

    data: bytes
    name: str
    """The file's name: ASCII letters, digits and punctuation without quotes."""


class Shown(NamedTuple):
    """The answer of a page."""

    data: Any
    """The answer to JSON clients, which msgspec can encode."""
    command: str
    """The `cometmq` command that prints the same data."""
    as_of_ms: int | None = None
    """When the data was collected; None if it does not age."""
    unanswered: Mapping[str, str] = {}
    """Brokers whose data is missing, with the reasons."""
    extra: Mapping[str, Any] = {}
    """Further values for the template only, such as tables and plots."""
    title: str = ""
    """The heading, if it differs from the page's title."""
    refresh_s: int = 0
    """The interval of automatic refreshes, if the user wants them; 0 means the default."""
    download: Download | None = None
    """Sent instead of the page."""


class Page(NamedTuple):
    """A page of the console: its path, menu entry and template, and the function that shows it."""

    path: str
    title: str
    template: str
    view: Callable[[View], Awaitable[Shown]]
    menu: str = ""
    """The entry in the menu; empty for a page that is only reached by links."""
    section: str = ""
    """The path of the menu entry to which the page belongs, if it has none itself."""
    role: Role = Role.VIEWER


def silent_brokers(snapshot: Snapshot) -> dict[str, str]:
    """Return the brokers whose figures are missing, completely or in part, with the reasons."""
    found: dict[str, str] = {}
    for broker in snapshot.brokers:
        if broker.is_master and not hasattr(broker.state, "figures"):
            found[broker.name] = broker.state.reason
    for name in snapshot.missing_brokers:
        found.setdefault(name, "no master is registered")
    return {**snapshot.incomplete, **found}
