# SPDX-License-Identifier: Apache-2.0
"""A running replay of dead letters: shows its progress and rate, and stops it on request."""

from typing import Any, Final

from cometmq.client.admin import AdminClient
from cometmq.console.jobs import Job
from cometmq.console.login.gate import may
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import missing
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.insight.words import counted

PATH: Final = "/dead-letters/progress"
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
        leads_to=view.href(PATH, group=group),
        refusal="" if job.ended_ms is None else f"The replay of {group} has ended.",
    )


PAGES: Final = (Page(PATH, "Replay", "replaying.html", progress, section=_SECTION),)
ACTIONS: Final = (
    Action(
        "dead-letters.stop", "/dead-letters/stop", "Stop", Role.OPERATOR, Risk.LOW, stop, _SECTION
    ),
)
