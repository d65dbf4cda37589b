# SPDX-License-Identifier: Apache-2.0
"""The views of `cometmq top`: pure functions from a snapshot to lines."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from cometmq.cli.output import Cell, column_named, sorted_rows
from cometmq.cli.plots import Trends
from cometmq.insight.findings import findings
from cometmq.insight.model import Group, Snapshot, Topic, TopicKind, Unknown, known
from cometmq.insight.rules.clients import advice_for, unexpected_refusals
from cometmq.insight.times import shown
from cometmq.insight.words import counted
from cometmq.remoting.codes import ResponseCode, request_name
from cometmq.remoting.refusals import plain_remark
from cometmq.remoting.versions import version_name
from cometmq.remoting.visible import visible_line

BOLD: Final = "\x1b[1m"
REVERSE: Final = "\x1b[7m"
RESET: Final = "\x1b[0m"
CONNECTIONS_SHOWN: Final = 10_000

View = tuple[tuple[str, ...], Callable[[Snapshot], list[list[Cell]]], str]
"""The columns, the rows, and the column to sort by at first."""


class Screen:
    """The user's choices, such as view and sort column, and the plots of all views."""

    def __init__(self, view: str, sort: str = "") -> None:
        self.view = view
        self.sort = sort
        self.is_reversed = False
        self.is_paused = False
        self.is_over = False
        self._trends = {view: Trends() for view in TRENDS}

    def note(self, snapshot: Snapshot) -> None:
        """Add a snapshot to the plots."""
        for view, column in TRENDS.items():
            columns, rows, _ = VIEWS[view]
            at = columns.index(column)
            self._trends[view].note((str(row[0]), _plotted(row[at])) for row in rows(snapshot))

    def with_plots(
        self, columns: tuple[str, ...], rows: Sequence[Sequence[Cell]]
    ) -> tuple[tuple[str, ...], Sequence[Sequence[Cell]]]:
        """Add the plot of each row to a view that has one."""
        if self.view not in TRENDS:
            return columns, rows
        trends = self._trends[self.view]
        title = f"{TRENDS[self.view]} until now"
        return (*columns[:2], title, *columns[2:]), [
            [*row[:2], trends.line(str(row[0])), *row[2:]] for row in rows
        ]

    def press(self, key: str) -> None:
        """Do what a pressed key means: leave, pause, sort, or show another view."""
        names = list(VIEWS)
        if key in {"q", "Q", "\x04"}:
            self.is_over = True
        elif key.isdecimal() and 0 < int(key) <= len(names):
            self._show(names[int(key) - 1])
        elif key == "\t":
            self._show(names[(names.index(self.view) + 1) % len(names)])
        elif key == "s":
            columns = VIEWS[self.view][0]
            at = columns.index(sort_column(self))
            self.sort, self.is_reversed = columns[(at + 1) % len(columns)], False
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "p":
            self.is_paused = not self.is_paused

    def _show(self, view: str) -> None:
        self.view, self.sort, self.is_reversed = view, "", False


def _plotted(cell: Cell) -> float | None:
    return cell if isinstance(cell, int | float) else None


def sort_column(screen: Screen) -> str:
    """Return the column to sort by."""
    columns, _, first = VIEWS[screen.view]
    return column_named(screen.sort or first, columns)


def rows_of(snapshot: Snapshot, screen: Screen) -> tuple[tuple[str, ...], Sequence[Sequence[Cell]]]:
    """Return the columns and the sorted rows of a view."""
    columns, rows, _ = VIEWS[screen.view]
    at = columns.index(sort_column(screen))
    return columns, sorted_rows(rows(snapshot), at, is_reversed=screen.is_reversed)


def _number(value: float | Unknown | None) -> float | int | None:
    if value is None or isinstance(value, Unknown):
        return None
    return value if isinstance(value, int) else round(value, 1)


def _topics(snapshot: Snapshot) -> list[list[Cell]]:
    return [_topic(it) for it in known(snapshot.topics) if it.kind is not TopicKind.SYSTEM]


def _topic(topic: Topic) -> list[Cell]:
    last = topic.last_write_ms
    return [
        topic.name,
        _number(topic.in_per_s),
        _number(topic.messages),
        topic.read_queues,
        len(topic.groups),
        shown(last) if isinstance(last, int) else None,
    ]


def _groups(snapshot: Snapshot) -> list[list[Cell]]:
    return [_group(it) for it in known(snapshot.groups) if not it.is_system]


def _group(group: Group) -> list[Cell]:
    members = None if isinstance(group.members, Unknown) else len(group.members)
    return [
        group.name,
        _number(group.lag),
        _number(group.behind_s),
        _number(group.out_per_s),
        members,
        _number(group.retry_backlog),
        _number(group.dead_letters),
    ]


def _slowest(snapshot: Snapshot) -> list[list[Cell]]:
    """Return the groups with unread messages, with the time to read them at the current rate."""
    rows: list[list[Cell]] = []
    for it in known(snapshot.groups):
        lag, out = _number(it.lag), _number(it.out_per_s)
        if lag:
            left = round(lag / out, 1) if out else None
            topics = sorted(it.topics, key=lambda one: -(_number(one.lag) or 0))
            name = topics[0].topic if topics else None
            rows.append([it.name, _number(it.behind_s), lag, out, left, name])
    return rows


def _connections(snapshot: Snapshot) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for group in known(snapshot.groups):
        for it in () if isinstance(group.members, Unknown) else group.members:
            facts: list[Cell] = [it.client_id, "consumer", group.name, it.address]
            rows.append([*facts, it.language, version_name(it.version), len(it.brokers)])
    for maker in known(snapshot.producers):
        facts = [maker.client_id, "producer", maker.group, maker.address]
        rows.append([*facts, maker.language, version_name(maker.version), len(maker.brokers)])
    return rows[:CONNECTIONS_SHOWN]


def _refused(snapshot: Snapshot) -> list[list[Cell]]:
    return [
        [
            request_name(it.code), it.subject or None, it.peer, it.count, shown(it.last_ms),
            _answer_name(it.response), it.broker, plain_remark(it.remark),
            advice_for(it.code, it.response, it.remark) or None,
        ]
        for it in known(unexpected_refusals(snapshot))
    ]  # fmt: skip


def _answer_name(code: int) -> str:
    is_known = code in ResponseCode._value2member_map_
    return ResponseCode(code).name if is_known else str(code)


EMPTY: Final = {
    "topics": "there are no topics",
    "groups": "there are no groups",
    "connections": "no client is connected",
    "slowest": "no group has unread messages",
    "refused": "no broker has refused a request lately",
}
"""What is printed about a view without rows."""


def empty_text(snapshot: Snapshot, view: str) -> str:
    """Return what a view without rows means: nothing exists, or no broker has answered."""
    told = {"topics": snapshot.topics, "connections": snapshot.producers,
            "refused": snapshot.refusals}.get(view, snapshot.groups)  # fmt: skip
    return f"the {view} are not known: {told.reason}" if isinstance(told, Unknown) else EMPTY[view]


TRENDS: Final = {"topics": "In per s", "groups": "Lag", "slowest": "Lag"}
"""The column of each view that is plotted over all snapshots."""
VIEWS: Final[Mapping[str, View]] = {
    "topics": (
        ("Topic", "In per s", "Messages", "Queues", "Groups", "Last message"), _topics, "In per s",
    ),
    "groups": (
        ("Group", "Lag", "Seconds behind", "Out per s", "Members", "Retries", "Dead letters"),
        _groups,
        "Lag",
    ),
    "connections": (
        ("Client", "Kind", "Group", "Address", "Language", "Version", "Brokers"),
        _connections,
        "Group",
    ),
    "slowest": (
        ("Group", "Seconds behind", "Lag", "Out per s", "Seconds to go", "Topic"),
        _slowest,
        "Seconds behind",
    ),
    "refused": (
        ("Request", "About", "Of whom", "Times", "Last", "Answer", "Broker", "Remark",
         "What helps"),
        _refused,
        "Times",
    ),
}  # fmt: skip
SENTENCES: Final = {"refused": 2}
"""How many of a view's last columns are sentences; the screen shows these below the row."""
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\dT)\d\d:\d\d:\d\d\.\d{3}Z")


def rendered(
    snapshot: Snapshot, failure: str, screen: Screen, width: int, height: int
) -> list[str]:
    """Return the lines of a screen, none wider than it."""
    columns, rows = screen.with_plots(*rows_of(snapshot, screen))
    views = "  ".join(
        f"{REVERSE}{number} {name}{RESET}" if name == screen.view else f"{number} {name}"
        for number, name in enumerate(VIEWS, 1)
    )
    state = "paused" if screen.is_paused else f"{shown(snapshot.taken_ms)}"
    bad = [it for it in findings(snapshot) if it.severity != "info"]
    wrong = f"{counted(len(bad), 'problem')}: {bad[0].text}" if bad else "no problem"
    if failure:
        wrong = f"no answer since then: {failure}"
    head = [
        _fitted(f"{state}  {counted(len(rows), 'row')}  by {sort_column(screen)}  {wrong}", width),
        views if width > 60 else screen.view,
    ]
    room = max(1, height - len(head) - 2)
    day = (shown(snapshot.taken_ms) or "")[: len("2026-11-20T")]
    texts = [[_text(cell, day) for cell in row] for row in rows[:room]]
    short = len(columns) - SENTENCES.get(screen.view, 0)
    columns, rows_of_cells = columns[:short], [row[:short] for row in texts]
    widths = _widths(columns, rows_of_cells, width)
    body = [BOLD + _line(columns, widths, rows_of_cells) + RESET]
    for row in texts:
        body.append(_line(row[:short], widths, rows_of_cells))
        body += _below(row[short:], width)
    body += [""] * (height - len(head) - len(body) - 1)
    help_line = f"1-{len(VIEWS)} or Tab view   s sort   r reverse   p pause   q quit"
    return [*head, *body[: height - len(head) - 1], _fitted(help_line, width)][:height]


def _below(sentences: Sequence[str], width: int) -> list[str]:
    indent = " " * min(4, width // 8)
    lines = [
        line
        for text in sentences
        if text != "-"
        for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    ]
    return [_fitted(line, width) for line in lines]


def _widths(columns: Sequence[str], texts: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns; the first one gives way, then the last ones are cut."""
    widths = [
        max(cell_len(name), *(cell_len(row[index]) for row in texts), 1)
        if texts
        else cell_len(name)
        for index, name in enumerate(columns)
    ]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    if excess > 0:
        widths[0] = max(min(widths[0], 16), widths[0] - excess)
    while len(widths) > 1 and sum(widths) + 2 * (len(widths) - 1) > width:
        widths.pop()
    widths[0] = min(widths[0], width)
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], texts: Sequence[Sequence[str]]) -> str:
    parts = []
    for index, (text, size) in enumerate(zip(cells, widths, strict=False)):
        is_number = bool(texts) and all(_is_number(row[index]) for row in texts)
        gap = " " * max(0, size - cell_len(text))
        parts.append(set_cell_size(gap + text if is_number else text, size))
    return "  ".join(parts).rstrip()


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "").isdecimal()


def _text(cell: Cell, day: str) -> str:
    """Return a cell as text; a time on `day` without its date."""
    if isinstance(cell, str) and (found := _MOMENT.fullmatch(cell)) and found[1] == day:
        return cell.removeprefix(day)
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else _one_line(str(cell))


def _fitted(text: str, width: int) -> str:
    shown_text = _one_line(text)
    return shown_text if cell_len(shown_text) <= width else set_cell_size(shown_text, width)


def _one_line(text: str) -> str:
    return visible_line(text).replace("\t", " ")
