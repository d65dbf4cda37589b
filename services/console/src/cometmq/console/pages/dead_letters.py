# SPDX-License-Identifier: Apache-2.0
"""Dead letters: lists them by group, and sends them again, all or some, after a preview."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_topic, running_replays
from cometmq.client.clock import wall_ms
from cometmq.client.errors import NoRetries, NoRoute, NotWritable
from cometmq.client.message import MessageExt
from cometmq.console.jobs import Job
from cometmq.console.login.roles import Role
from cometmq.console.pages import replaying
from cometmq.console.web.action import Action, Consequence, Field, Form, Link, Plan, Risk
from cometmq.console.web.page import Download, Page, Shown, View, silent_brokers
from cometmq.console.web.tables import Column
from cometmq.insight.decode import decode
from cometmq.insight.life import replays_of
from cometmq.insight.model import Group, Unknown, known
from cometmq.insight.replays import (
    Choice,
    Pace,
    Replay,
    Replayed,
    as_object,
    replay_command,
    replays_text,
)
from cometmq.insight.words import command, counted, lasting
from cometmq.remoting.errors import CometError
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import dead_letter_topic, retry_topic

SHOWN_MAX: Final = 500
NO_REASON: Final = (
    "RocketMQ's protocol carries no error with a dead letter: the consumer's log has it"
    " (event listener.failed)"
)
REPLAYED_MAX: Final = 10_000
"""The most dead letters that one action sends, because it keeps their ids in memory. The command
line has no such limit.
"""
TICKED_MAX: Final = SHOWN_MAX
PREVIEW_CHARS: Final = 120
TIMES_MAX: Final = 50
"""The most groups for which the list shows when the newest dead letter was stored."""
_SECTION: Final = "/dead-letters"


# -- what there is --------------------------------------------------------------------------------


async def overview(view: View) -> Shown:
    snapshot = await view.snapshot()
    groups = [
        it
        for it in known(snapshot.groups)
        if isinstance(it.dead_letters, Unknown) or it.dead_letters
    ]
    last = dict(zip((it.name for it in groups), await _last_times(view, groups), strict=True))
    columns: list[Column[Group]] = [
        Column(
            "name",
            "Group",
            lambda it: it.name,
            link=lambda it: view.href("/dead-letters/group", group=it.name),
        ),
        Column("count", "Dead letters", lambda it: it.dead_letters, "number"),
        Column(
            "left",
            "Not sent again",
            lambda it: it.dead_left,
            "number",
            help="Those that no replay of all has passed; the others stay until they expire",
        ),
        Column(
            "last",
            "Last",
            lambda it: last[it.name],
            "moment",
            help="When the newest dead letter was stored",
        ),
        Column("lag", "Lag", lambda it: it.lag, "number"),
        Column("retries", "Retries at most", lambda it: it.retries, "number"),
    ]
    table = view.table(groups, columns, default="-count", search=lambda it: it.name)
    data = [
        {
            "group": it.name,
            "dead_letters": it.dead_letters,
            "not_sent_again": it.dead_left,
            "last_ms": last[it.name],
            "lag": it.lag,
            "retries": it.retries,
        }
        for it in groups
    ]
    return Shown(
        data,
        "cometmq dlq list",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {
            "table": table,
            "unknown": snapshot.groups if isinstance(snapshot.groups, Unknown) else None,
        },
    )


async def _last_times(view: View, groups: Sequence[Group]) -> list[int | Unknown]:
    """Return when the newest dead letter of each group was stored.

    Only the first TIMES_MAX groups are looked up, because each takes a request to every broker.
    """

    async def last_ms(group: Group) -> int | Unknown:
        try:
            stats = await view.admin().topic_stats(dead_letter_topic(group.name))
        except CometError as error:
            return Unknown(str(error))
        times_ms = [it.last_update_timestamp for it in stats.values()]
        return max(times_ms, default=0) or Unknown("the broker does not report it")

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(last_ms(it)) for it in groups[:TIMES_MAX]]
    found = [it.result() for it in asked]
    return [*found, *[Unknown(f"there are more than {TIMES_MAX} groups")] * len(groups[TIMES_MAX:])]


def _choice(view: View, count_max: int | None = None) -> Choice:
    now_ms = wall_ms()
    return Choice(
        view.text("tag") or None,
        view.text("key") or None,
        view.text("origin") or None,
        frozenset({message_id}) if (message_id := view.text("id")) else None,
        view.moment("since", now_ms=now_ms),
        view.moment("until", now_ms=now_ms),
        count_max,
    )


async def of_group(view: View) -> Shown:
    group = view.needed("group")
    await view.check_readable(dead_letter_topic(group))
    choice = _choice(view, SHOWN_MAX + 1)
    found = [it async for it in choice.read(view.admin(), group)]
    notes = []
    if len(found) > SHOWN_MAX:
        notes.append(f"only the first {SHOWN_MAX:,} are shown: narrow the selection")
        found = found[:SHOWN_MAX]
    found.sort(key=lambda it: it.store_timestamp)  # they come queue by queue
    if view.is_set("download"):
        lines = b"".join(msgspec.json.encode(as_object(it)) + b"\n" for it in found)
        file = Download(lines, f"dead-letters-{re.sub(r'[^A-Za-z0-9_.-]', '_', group)}.jsonl")
        return Shown([], command("dlq export", group), download=file)
    replayed = await replays_of(view.admin(), group, found)
    names = ("tag", "key", "origin", "id", "since", "until")
    args = {name: view.text(name) for name in names}
    options = [word for name, text in args.items() if text for word in (f"--{name}", text)]
    return Shown(
        [as_object(it) | {"replayed_ms": at} for it, at in zip(found, replayed, strict=True)],
        command("dlq show", group, options=options),
        wall_ms(),
        extra={
            "group": group,
            "args": args,
            "is_selecting": any(args.values()),
            "rows": [
                _row(view, group, it) | {"replayed": at}
                for it, at in zip(found, replayed, strict=True)
            ],
            "notes": notes,
            "no_reason": NO_REASON,
            "dead_topic": dead_letter_topic(group),
            "job": view.desk.jobs.find(replaying.name_of(group)),
            "others": await _others(view, group),
        },
        title=f"Dead letters of {group}",
    )


def _row(view: View, group: str, message: MessageExt) -> dict[str, Any]:
    shown = decode(message.body, chars_max=4 * PREVIEW_CHARS)
    return {
        "died": message.store_timestamp,
        "origin": origin_topic(message),
        "tag": message.tag or "",
        "keys": [key for key in message.keys if key != message.message_id],
        "attempts": _attempts(message),
        "body": f"{' '.join(shown.text.split())[:PREVIEW_CHARS]} ({shown.format})",
        "id": message.offset_message_id,
        "message_id": message.message_id,
        "link": view.href("/message", topic=message.topic, id=message.offset_message_id),
        "edit": view.href("/dead-letters/edit", group=group, id=message.offset_message_id),
    }


def _attempts(message: MessageExt) -> str:
    """Return how often a dead letter was delivered: its last failure counts as a redelivery."""
    retries = whole(message.properties.get(PropertyKey.MAX_RECONSUME_TIMES, ""))
    limit = "" if retries is None else f" of {retries + 1}"
    return f"{message.reconsume_times}{limit}"


# -- sending them again ---------------------------------------------------------------------------


class _Asked(NamedTuple):
    """What the user has chosen in the form for a replay."""

    group: str
    topic: str | None
    rate: int
    from_start: bool
    is_ticked: bool
    """Whether the user ticks dead letters, instead of giving conditions for them."""
    ids: Sequence[str]
    """The ids of the ticked dead letters."""
    choice: Choice

    @property
    def target(self) -> str:
        return self.topic or f"the group {self.group}"


async def replay(view: View) -> Form:
    """Plan to send dead letters again: the ticked ones, or all that meet the conditions in the
    form.
    """
    asked = await _asked(view)
    counting = Replay(asked.group, asked.topic, is_dry=True)
    await _run(counting, view.admin(), asked)
    count = len(counting.sent)
    refusal, remedy = await _refusal(view, asked, count)
    others = "" if refusal else await _others(view, asked.group)
    run = Replay(asked.group, asked.topic, pace=Pace(asked.rate))

    async def perform(client: AdminClient) -> str:
        await _run(run, client, asked)
        return _outcome(run, asked)

    facts = {"messages": count, "broken": len(counting.broken),
             "replayed before": counting.skipped_count}  # fmt: skip
    return Form(
        _fields(view, asked),
        Plan(
            what=f"Send {counted(count, 'dead letter')} of {asked.group} to {asked.target}",
            subject=asked.group,
            before=facts,
            after=facts,
            consequences=[
                *([Consequence(f"{others[:1].upper()}{others[1:]}.", "warn")] if others else []),
                *_consequences(counting, asked),
            ],
            command=_command(asked),
            perform=perform,
            leads_to=view.href("/dead-letters/group", group=asked.group),
            refusal=refusal,
            remedy=remedy,
            job=_job(view, asked, run, count),
        ),
        intro="This is a dry run: nothing is sent before you confirm.",
    )


async def _others(view: View, group: str) -> str:
    """Return which other programs replay the group's dead letters; empty if this one does."""
    if view.desk.jobs.running(replaying.name_of(group)) is not None:
        return ""
    return replays_text(group, await running_replays(view.admin(), group))


async def _asked(view: View) -> _Asked:
    group = view.needed("group")
    ids = view.many("ids", count_max=TICKED_MAX)
    is_ticked = view.is_set("ticked") or bool(ids)
    topic = view.text("topic") or None
    if topic is not None or any(view.text(name) for name, _ in _SELECTION):
        # without the right to read them, a user must not move them, nor learn their keys by counts
        await view.check_readable(dead_letter_topic(group))
    rate = view.number("rate", 50, low=1, high=10_000)
    choice = _choice(view)
    if is_ticked:
        choice = msgspec.structs.replace(choice, ids=frozenset(ids))
    return _Asked(
        group, topic, rate, view.is_set("from_start") or is_ticked, is_ticked, ids, choice
    )


def _fields(view: View, asked: _Asked) -> list[Field]:
    return [
        Field("group", "Group", "hidden", asked.group),
        Field("topic", "Send to this topic instead", value=asked.topic or "",
              help="All groups that read the topic get the messages; empty: only this group."),
        Field("rate", "Messages per second, at most", "number", str(asked.rate)),
        *(Field(name, label, "hidden" if asked.is_ticked else "text", view.text(name))
          for name, label in _SELECTION),
        Field("from_start", "Include messages that were replayed before",
              "hidden" if asked.is_ticked else "check",
              "1" if asked.from_start else ""),
        *(Field("ids", "", "hidden", it) for it in asked.ids),
        *([Field("ticked", "", "hidden", "1")] if asked.is_ticked else []),
    ]  # fmt: skip


async def _run(run: Replay, admin: AdminClient, asked: _Asked) -> None:
    replayed = Replayed(admin, asked.group, is_ignored=asked.from_start)
    await run.run(admin, asked.choice, replayed)


def _outcome(run: Replay, asked: _Asked) -> str:
    left = f"; {counted(len(run.broken), 'message')} cannot be sent" if run.broken else ""
    was_stopped = "Stopped: sent" if run.is_stopping else "Sent"
    count = counted(len(run.sent), "message")
    return f"{was_stopped} {count} of {asked.group} to {asked.target}{left}."


def _job(view: View, asked: _Asked, run: Replay, total: int) -> Job:
    def stop() -> None:
        run.is_stopping = True

    return Job(
        replaying.name_of(asked.group),
        total=total,
        count=lambda: len(run.sent),
        stop=stop,
        page=view.href(replaying.PATH, group=asked.group),
        command=_command(asked),
    )


_SELECTION: Final = (
    ("tag", "Only with this tag"),
    ("key", "Only with this key"),
    ("origin", "Only of this topic"),
    ("id", "Only with this message id"),
    ("since", "Only dead since"),
    ("until", "Only dead before"),
)


async def _refusal(view: View, asked: _Asked, count: int) -> tuple[str, Link | None]:
    """Return why `count` messages cannot be sent now, and a link to the page with the remedy; ""
    and None if they can.
    """
    group = asked.group
    if asked.is_ticked and not asked.ids:
        return "No dead letter is ticked: tick those to send, or send all that match.", None
    if view.desk.jobs.running(replaying.name_of(group)) is not None:
        remedy = Link("See how far it is", view.href(replaying.PATH, group=group))
        return f"Dead letters of {group} are being sent again.", remedy
    if not count:
        return "No dead letter is selected that could be sent.", None
    if count > REPLAYED_MAX:
        text = (
            f"{counted(count, 'message')} are too many for the console (at most"
            f" {REPLAYED_MAX:,}): use the command below, or narrow the selection."
        )
        return text, None
    return await why_not_sent(view, group, asked.topic)


async def why_not_sent(view: View, group: str, topic: str | None) -> tuple[str, Link | None]:
    """Return why brokers would refuse the dead letters of a group, and a link to the page with the
    remedy; "" and None if they would not.
    """
    try:
        await view.admin().check_replay(group, topic=topic)
    except NoRetries as error:
        alter = Link("Give the group retries", view.href("/group/alter", name=group, retries=1))
        return f"{error.cause}; allow the group retries first, or send to another topic.", alter
    except NotWritable:
        name = topic or retry_topic(group)
        alter = Link("Change the topic", view.href("/topic/alter", name=name))
        return f"The topic {name} accepts no messages: it may not be written to.", alter
    except NoRoute as error:
        if topic is None:
            return str(error), None
        create = Link("Create the topic", view.href("/topic/create", name=topic))
        return f"No broker has the topic {topic}: check the name, or create it.", create
    except CometError as error:
        return str(error), None
    return "", None


def _consequences(counting: Replay, asked: _Asked) -> list[Consequence]:
    count, topic, rate = len(counting.sent), asked.topic, asked.rate
    found = [
        Consequence(
            f"All groups that read {topic} get the messages, not only {asked.group}."
            if topic
            else f"Only {asked.group} gets the messages, with the full number of attempts.",
            "warn" if topic else "",
        ),
        Consequence("The messages stay dead letters; a message that fails again becomes another."),
        Consequence(
            f"It takes about {lasting(max(1, count / rate))} at {rate:,} messages per second."
        ),
    ]
    if counting.broken:
        text = (
            f"{counted(len(counting.broken), 'message')} cannot be sent: their bodies are broken."
        )
        found.append(Consequence(text, "bad"))
    if counting.skipped_count:
        text = (
            f"{counted(counting.skipped_count, 'message')} were replayed before and are left out."
        )
        found.append(Consequence(text, "warn"))
    return found


def _command(asked: _Asked) -> str:
    return replay_command(
        asked.group,
        asked.choice,
        topic=asked.topic,
        rate=asked.rate,
        is_ignored=asked.from_start,
    )


PAGES: Final = (
    Page(_SECTION, "Dead letters", "dead_letters.html", overview, menu="Dead letters"),
    Page("/dead-letters/group", "Dead letters", "dead_group.html", of_group, section=_SECTION),
)
ACTIONS: Final = (
    Action(
        "dead-letters.replay", "/dead-letters/replay", "Send again", Role.OPERATOR, Risk.MEDIUM,
        replay, _SECTION, by_post=True,
    ),
)  # fmt: skip
