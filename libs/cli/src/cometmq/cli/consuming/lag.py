# SPDX-License-Identifier: Apache-2.0
"""`cometmq lag`: how far consumer groups are behind, in messages and in time."""

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, Yes, ask, wrong_usage
from cometmq.cli.consuming.progress import AbsentBrokers, Progress, absence, note_left_out
from cometmq.cli.lazy import App
from cometmq.cli.lookup import known_group
from cometmq.cli.output import (
    STDOUT,
    AsJson,
    Cell,
    as_objects,
    column_named,
    print_facts,
    print_json,
    print_notes,
    print_rows,
    sorted_rows,
)
from cometmq.cli.plots import sparkline
from cometmq.cli.say import say
from cometmq.cli.verbs.pages import confirm_page, html, write_page
from cometmq.cli.verbs.topic_notes import unread_notes
from cometmq.cli.watching import Every, watch
from cometmq.client.admin.groups import with_offsets_only
from cometmq.insight import times
from cometmq.insight.changes.groups import broadcasting_text
from cometmq.insight.changes.topics import check_exists
from cometmq.insight.consumer_groups import OWN_OFFSETS, loss_facts, loss_words
from cometmq.insight.members import (
    GroupMembers,
    Owners,
    is_ours,
    members_of,
    owner_words,
    owners_of,
    silent_notes,
)
from cometmq.insight.model import Unknown
from cometmq.insight.queue_states import (
    QueueState,
    missed_notes,
    missing_level_notes,
    never_read_notes,
    queue_states,
    time_to_loss,
    topics_by_group,
    unread_since_ms,
    waiting_in,
)
from cometmq.insight.words import counted, lasting, moment
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError

QUEUE_COLUMNS: Final = (
    "Topic", "Broker", "Queue", "Min", "Committed", "Max", "Lag", "Skips", "Seconds behind",
    "Owners",
)  # fmt: skip
LOOKS_MAX: Final = 50
"""Snapshots in the plot of `--watch`."""
GROUP_COLUMNS: Final = (
    "Group", "Members", "Topics", "Queues", "Lag", "Skips", "Seconds behind", "Oldest unread",
    "Time to loss",
)  # fmt: skip
MISSING_COLUMN: Final = "Missing brokers"
"""Names the brokers without which a group's figures are lower bounds."""
RARE_COLUMNS: Final = frozenset({"Skips", MISSING_COLUMN})
"""Columns that are left out of a table if all their cells are empty."""

Ask = Callable[[Callable[[CommandAdmin], Awaitable[Any]]], Any]
"""Runs a query of the cluster, with an admin client that it opens for it."""

app = App()


@app.command()
def lag(  # noqa: PLR0913  # one parameter per option
    group: Annotated[str | None, typer.Argument(help="Consumer group; all by default.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    *,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Write an HTML page, worst first; - is standard output.",
            dir_okay=False,
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option(help="Column to sort by; the largest first, names from A.")
    ] = "",
    every_s: Every = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Show how far groups are behind, worst first; with GROUP, each of its queues.

    Retries are included. The exit status is 1 if brokers or groups are left out; the output names
    them, and groups that have never read. If brokers are missing, figures are lower bounds.

    Oldest unread is when the oldest unread message was stored, not when the group stopped reading.
    Time to loss is the time until an unread message may be deleted for its age (fileReservedTime);
    "never" if nothing is unread. Skips counts messages that the group will never read, because its
    offset is beyond the end of the queue. Owners are the client ids of the queue's members.

    \b
    EXAMPLE
      cometmq lag billing --watch 5
    """
    if report is not None:
        if every_s is not None:
            raise wrong_usage("give --report or --watch, not both")
        if sort:
            raise wrong_usage("give --report or --sort, not both: a report has the worst first")
        _write_report(
            report,
            partial(ask, namesrv),
            group,
            topic,
            as_json=as_json,
            yes=yes,
        )
        return
    columns = GROUP_COLUMNS if group is None else QUEUE_COLUMNS
    at = columns.index(column_named(sort, columns)) if sort else None
    view = partial(_group_view, group=group) if group is not None else _groups_view
    trend: deque[float | None] = deque(maxlen=LOOKS_MAX)
    show = partial(
        view,
        partial(ask, namesrv),
        topic=topic,
        as_json=as_json,
        trend=trend,
        at=at,
    )
    if every_s is None:
        show()()
    else:
        watch(show, every_s, as_json=as_json)


def _group_view(
    ask_all: Ask,
    *,
    group: str,
    topic: str | None,
    as_json: bool,
    trend: deque[float | None],
    at: int | None,
) -> Callable[[], None]:
    """Ask for the queues of a group; return a function that prints them, sorted by the
    column `at`.
    """

    async def question(
        admin: CommandAdmin,
    ) -> tuple[list[QueueState], int, Owners, float | Unknown | None, list[str], list[str], str]:
        config = await known_group(admin, group)
        if topic is not None:
            await check_exists(admin, topic)
        states = await queue_states(admin, group, topic)
        # a topic that the group may not read has no offsets of it
        topics = {state.queue.topic for state in states}
        members = await members_of(admin, group, config)
        topics |= members.topics
        empty = f"{group} has no offsets{_inside(topic)} yet"
        if not states and await admin.is_broadcasting(group):
            empty = broadcasting_text(group)
        missing = await AbsentBrokers(admin).of(group, topics, topic)
        if topic is not None:
            topics &= {topic}
        notes = await unread_notes(admin, topics, waiting_in(states))
        notes += await missing_level_notes(admin)
        loss_s = await time_to_loss(admin, states)
        owners = await owners_of(admin, group, members.sharers)
        notes = [*missed_notes(group, states), *notes, *silent_notes(owners)]
        return states, members.count, owners, loss_s, missing, notes, empty

    states, members, owners, loss_s, missing, notes, empty = ask_all(question)

    def show() -> None:
        total, skips, behind_s, since = _total(states)
        rows: Sequence[Sequence[Cell]] = [_queue_row(state, owners) for state in states]
        rows = rows if at is None else sorted_rows(rows, at)
        if as_json:
            queues = as_objects(QUEUE_COLUMNS, rows)
            facts: dict[str, Cell] = {
                "group": group, "members": members, "lag": total, "skips": skips,
                "seconds_behind": behind_s, "oldest_unread": since, **loss_facts(loss_s),
            }  # fmt: skip
            print_json({**facts, "missing_brokers": missing, "queues": queues})
        else:
            title = _title(group, states, members, missing, loss_s)
            if free := sum(owners.of(state.queue) == [] for state in states):
                title += f", {counted(free, 'queue')} without an owner"
            shown = [[*row[:-1], owner_words(row[-1])] for row in rows]  # type: ignore[arg-type]
            _print_filled(QUEUE_COLUMNS, shown, title, empty)
            _plot(trend, total)
        print_notes(notes)

    return show


def _write_report(
    file: Path,
    ask_all: Ask,
    group: str | None,
    topic: str | None,
    *,
    as_json: bool,
    yes: bool,
) -> None:
    module = import_module("cometmq.cli.consuming.lag_report")  # 20 ms that the table saves

    async def question(admin: CommandAdmin) -> Any:
        await confirm_page(file, is_confirmed=yes)
        if topic is not None:
            await check_exists(admin, topic)
        found = await module.collect(admin, group, topic)
        topics = (it.topic for row in found.groups for it in row.group.topics)
        return found, await unread_notes(admin, topics)

    found, notes = ask_all(question)
    write_page(html(module.report_of(found)), file)
    if str(file) != STDOUT:
        facts: dict[str, Cell] = {
            "report": str(file), "groups": len(found.groups), "need_a_look": found.troubled,
        }  # fmt: skip
        if as_json or found.missing_brokers:
            facts["missing_brokers"] = list(found.missing_brokers)
        print_facts(facts, as_json=as_json)
    print_notes(notes)


Losses = dict[str, float | Unknown | None]
"""The time until each group loses messages."""


async def _ask_groups(
    topic: str | None, admin: CommandAdmin
) -> tuple[Sequence[Sequence[Cell]], Losses, list[str]]:
    """Return a row for each group, the time to loss of each in seconds, and notes."""
    notes: list[str] = []
    kept_s: dict[str, float | None] = {}
    losses: Losses = {}
    rows: list[list[Cell]] = []
    consumed: set[str] = set()
    unread_by: list[str] = []
    waiting = Counter[MessageQueue]()
    if topic is not None:
        await check_exists(admin, topic)
    absent = AbsentBrokers(admin)
    offsets = await topics_by_group(admin)
    known = with_offsets_only(await admin.groups(), offsets)
    configs = {name: it for name, it in known.items() if is_ours(name)}
    progress = await Progress.read(admin)
    for group, states in (await progress.states(configs, topic)).items():
        try:
            if isinstance(states, CometError):
                raise states
            topics = {state.queue.topic for state in states}
            members = await progress.members(group, configs[group])
            missing = await absent.of(group, topics | members.topics, topic)
        except CometError as error:
            note_left_out(group, error)
            continue
        if topic is not None and topic not in topics | members.topics and not missing:
            continue
        if members.model == "BROADCASTING":
            losses[group] = OWN_OFFSETS
            rows.append(_group_row(members, states, OWN_OFFSETS, missing))
            continue
        losses[group] = await time_to_loss(admin, states, kept_s)
        rows.append(_group_row(members, states, losses[group], missing))
        notes.extend(missed_notes(group, states))
        consumed |= topics
        waiting |= Counter(waiting_in(states))
        if not missing and not _has_read(offsets.get(group, set()), topic):
            unread_by.append(group)
    notes.extend(never_read_notes(unread_by, topic))
    notes.extend(await unread_notes(admin, consumed, waiting))
    notes.extend(await missing_level_notes(admin))
    return rows, losses, notes


def _group_row(
    members: GroupMembers,
    states: list[QueueState],
    loss_s: float | Unknown | None,
    missing: list[str],
) -> list[Cell]:
    total = (None,) * 4 if loss_s is OWN_OFFSETS else _total(states)
    counts = [members.count, len({state.queue.topic for state in states}), len(states)]
    known_s = None if isinstance(loss_s, Unknown) else loss_s
    return [members.group, *counts, *total, known_s, missing]


def _has_read(topics: set[str], topic: str | None) -> bool:
    """Return whether a group with offsets in `topics` has read the topic, or any."""
    return bool(topics) if topic is None else topic in topics


def _groups_view(
    ask_all: Ask,
    *,
    topic: str | None,
    as_json: bool,
    trend: deque[float | None],
    at: int | None,
) -> Callable[[], None]:
    """Ask for the lag of all groups; return a function that prints it, sorted by the column
    `at`.
    """
    rows, losses, notes = ask_all(partial(_ask_groups, topic))
    worst_first = GROUP_COLUMNS.index("Lag") if at is None else at
    is_loss = worst_first == GROUP_COLUMNS.index("Time to loss")  # the shortest is the worst
    rows = sorted_rows(rows, worst_first, is_reversed=is_loss)

    def show() -> None:
        if as_json:
            objects = as_objects((*GROUP_COLUMNS, MISSING_COLUMN), rows)
            print_json([it | loss_facts(losses[str(it["group"])]) for it in objects])
        else:
            shown = [_shown(row, losses[str(row[0])]) for row in rows]
            state = "exists" if topic is None else f"has offsets in {topic} yet"
            empty = f"no consumer group {state}"
            _print_filled((*GROUP_COLUMNS, MISSING_COLUMN), shown, "", empty)
            if not any(row[-1] for row in rows):
                _plot(trend, sum(_lag_of(row) for row in rows))
        print_notes(notes)

    return show


def _print_filled(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str, empty: str
) -> None:
    """Print a table without the RARE_COLUMNS that have only empty cells."""
    kept = [
        at
        for at, column in enumerate(columns)
        if column not in RARE_COLUMNS or any(row[at] for row in rows)
    ]
    cells = [[row[at] for at in kept] for row in rows]
    print_rows([columns[at] for at in kept], cells, as_json=False, title=title, empty=empty)


def _shown(row: Sequence[Cell], loss_s: float | Unknown | None) -> list[Cell]:
    """Return a row for the table, with times shortened to two units, so that it fits on 80
    columns.
    """
    *others, since, _, missing = row
    second = f"{since[:19].replace('T', ' ')}Z" if isinstance(since, str) else None
    return [*others, second, loss_words(loss_s), missing]


def _plot(trend: deque[float | None], total: int) -> None:
    """Add the lag of this snapshot to the plot, and print it from the second snapshot on."""
    trend.append(total)
    if len(trend) > 1:
        say(f"\nLag, {len(trend)} looks: {sparkline(trend)} {total:,}")


def _lag_of(row: Sequence[Cell]) -> int:
    value = row[GROUP_COLUMNS.index("Lag")]
    return value if isinstance(value, int) else 0


def _queue_row(state: QueueState, owners: Owners) -> list[Cell]:
    queue = state.queue
    offsets = [state.min_offset, state.committed, state.max_offset, state.lag, state.skip_count]
    return [
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        *offsets,
        state.behind_s,
        owners.of(queue),
    ]


def _inside(topic: str | None) -> str:
    return "" if topic is None else f" in {topic}"


def _title(
    group: str,
    states: list[QueueState],
    members: int,
    missing: list[str],
    loss_s: float | Unknown | None,
) -> str:
    """Return the heading of a group's queues; without the missing brokers, the lag is a lower
    bound.
    """
    total, _, behind_s, _ = _total(states)
    place = counted(len(states), "queue")
    if missing:
        least = f"; at least {counted(total, 'message')}, in {place} of the others"
        return f"{group}: incomplete, because {absence(missing)}{least if states else ''}"
    parts = [f"{group}: {counted(total, 'message')} in {place}"]
    if behind_s:
        parts.append(f"{lasting(behind_s)} behind")
    if (since_ms := unread_since_ms(states)) is not None:
        parts.append(f"oldest unread {moment(since_ms)}")
    if loss_s is not None:
        parts.append(f"time to loss {loss_words(loss_s)}")
    if not members:
        parts.append("no member is connected")
    return ", ".join(parts)


def _total(states: list[QueueState]) -> tuple[int, int, float | None, str | None]:
    """Return how many messages the groups are behind, how many they will skip, the seconds behind,
    and when the oldest unread message was stored.
    """
    behind = [state.behind_s for state in states if state.behind_s is not None]
    lag, since_ms = sum(state.lag for state in states), unread_since_ms(states)
    since = None if since_ms is None else times.shown(since_ms)
    return lag, sum(state.skip_count for state in states), max(behind, default=None), since
