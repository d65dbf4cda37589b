# SPDX-License-Identifier: Apache-2.0
"""Dead letters: lists them by group, and sends them again, all or some, after a preview."""

import re
from typing import Any, Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_topic, running_replays
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt
from cometmq.console.jobs import Job
from cometmq.console.login.gate import may
from cometmq.console.login.roles import Role
from cometmq.console.pages.changes import action_of, prepare
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Download, Page, Shown, View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.change import Consequence, Done, Link, Plan, Risk, arguments
from cometmq.insight.changes.messages import ReplayDeadLetters
from cometmq.insight.changes.replays import (
    Choice,
    as_object,
    replays_text,
)
from cometmq.insight.decode import decode
from cometmq.insight.life import replays_of
from cometmq.insight.words import command, counted
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import dead_letter_topic

PROGRESS: Final = "/dead-letters/progress"
_SECTION: Final = "/dead-letters"


def name_of(group: str) -> str:
    """Return the name of a group's replay among all jobs."""
    return f"replay of {group}"


def _found(view: View) -> tuple[str, Job]:
    group = view.needed("group")
    job = view.desk.jobs.find(name_of(group))
    if job is None:
        raise missing(f"no dead letters of {group} were sent again since the console started")
    return group, job


async def progress(view: View) -> Shown:
    group, job = _found(view)
    now_ms = view.desk.clock.now_ms()
    per_s = job.per_s(now_ms)
    is_running = job.ended_ms is None
    left_s = (job.total - job.done) / per_s if is_running and per_s else None
    data: dict[str, Any] = {
        "group": group,
        "is_running": is_running,
        "sent": job.done,
        "messages": job.total,
        "per_s": round(per_s, 1),
        "left_s": left_s,
        "begun_ms": job.begun_ms,
        "ended_ms": job.ended_ms,
        "text": _sent_text(job) if is_running else job.text,
        "failed": job.error is not None,
    }
    mark = ""
    if is_running and not job.is_stopping and may(view.user, Role.OPERATOR):
        mark = _form(view, group, job).mark(view.desk.audit.version(group))
    return Shown(
        data,
        job.command,
        now_ms,
        extra={"mark": mark, "is_stopping": job.is_stopping},
        title=f"Replay of {group}",
    )


def _sent_text(job: Job) -> str:
    return f"Sent {job.done:,} of {counted(job.total, 'message')}."


async def stop(view: View) -> Form:
    group, job = _found(view)
    return _form(view, group, job)


def _form(view: View, group: str, job: Job) -> Form:
    return Form([Field("group", "Group", "hidden", group)], _plan(view, group, job))


def _plan(view: View, group: str, job: Job) -> Plan:
    async def perform(_client: AdminClient) -> Done:
        job.stop()
        return Done(f"The replay of {group} was told to stop.")

    return Plan(
        what=f"Stop the replay of {group}",
        subject=group,
        before=job.begun_ms,
        after=None,
        consequences=[
            Consequence(
                f"{counted(job.done, 'message')} of {job.total:,} were sent; the next replay"
                " continues with the others."
            )
        ],
        command="",
        perform=perform,
        leads_to=view.href(PROGRESS, group=group),
        refusal="" if job.ended_ms is None else f"The replay of {group} has ended.",
    )


SHOWN_MAX: Final = 500
NO_REASON: Final = (
    "RocketMQ's protocol carries no error with a dead letter: the consumer's log has it"
    " (event listener.failed)"
)
REPLAYED_MAX: Final = 10_000
"""The most dead letters that one action sends, because it keeps their ids in memory. The command
line has no such limit.
"""
PREVIEW_CHARS: Final = 120


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
            "job": view.desk.jobs.find(name_of(group)),
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


async def replay(view: View) -> Form:
    """Plan to send dead letters again: the ticked ones, or all that meet the conditions in the
    form.
    """
    group = view.needed("group")
    if any(view.text(it.name) for it in arguments(ReplayDeadLetters) if it.name in _SELECTING):
        # without the right to read them, a user must not move them, nor learn their keys by counts
        await view.check_readable(dead_letter_topic(group))
    if view.is_set("ticked") and not any(view.many("ids", count_max=SHOWN_MAX)):
        raise bad("No dead letter is ticked: tick those to send, or send all that match.")
    form = await prepare(ReplayDeadLetters, view)
    plan = form.plan
    assert plan is not None, "only the group is needed"
    run, page = plan.job, view.href(PROGRESS, group=group)
    refusal, remedy = plan.refusal, plan.remedy
    if view.desk.jobs.running(name_of(group)) is not None:
        refusal = f"Dead letters of {group} are being sent again."
        remedy = Link("See how far it is", page)
    elif len(run.wanted) > REPLAYED_MAX:
        refusal = (
            f"{counted(len(run.wanted), 'message')} are too many for the console (at most"
            f" {REPLAYED_MAX:,}): use the command below, or narrow the selection."
        )

    def stop() -> None:
        run.is_stopping = True

    job = Job(
        name_of(group), total=len(run.wanted), count=lambda: len(run.sent), stop=stop,
        page=page, command=plan.command,
    )  # fmt: skip
    return form._replace(
        plan=plan._replace(
            refusal=refusal, remedy=remedy, job=job,
            leads_to=view.href("/dead-letters/group", group=group),
        ),
        intro="This is a dry run: nothing is sent before you confirm.",
    )  # fmt: skip


async def _others(view: View, group: str) -> str:
    """Return which other programs replay the group's dead letters; empty if this one does."""
    if view.desk.jobs.running(name_of(group)) is not None:
        return ""
    return replays_text(group, await running_replays(view.admin(), group))


_SELECTING: Final = frozenset({"topic", "tag", "key", "origin", "ids", "since", "until"})

PAGES: Final = (
    Page("/dead-letters/group", "Dead letters", "dead_group.html", of_group, section=_SECTION),
    Page(PROGRESS, "Replay", "replaying.html", progress, section=_SECTION),
)
ACTIONS: Final = (
    action_of(ReplayDeadLetters)._replace(prepare=replay),
    Action(
        "dead-letters.stop", "/dead-letters/stop", "Stop", Role.OPERATOR, Risk.LOW, stop, _SECTION
    ),
)
