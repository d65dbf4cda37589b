# SPDX-License-Identifier: Apache-2.0
"""Notes: what operators have written about topics and groups."""

from typing import Any, Final

from cometmq.client.admin import AdminClient
from cometmq.console.login.roles import Role
from cometmq.console.notes import CHARS_MAX, COUNT_MAX, Note
from cometmq.console.web.action import Action, Field, Form, Plan, Risk
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.problems import bad, missing
from cometmq.console.web.tables import Column
from cometmq.insight.words import command

PATH: Final = "/notes"


def columns(view: View) -> list[Column[Note]]:
    return [
        Column("name", "About", lambda it: it.name,
               link=lambda it: view.href(f"/{it.kind}", name=it.name)),
        Column("kind", "Kind", lambda it: it.kind),
        Column("text", "Note", lambda it: it.text),
        Column("user", "By", lambda it: it.user),
        Column("at", "Written", lambda it: it.at_ms, "moment"),
    ]  # fmt: skip


async def notes(view: View) -> Shown:
    found = view.desk.notes.all
    table = view.table(
        found, columns(view), default="name", search=lambda it: f"{it.kind} {it.name} {it.text}"
    )
    return Shown(
        found,
        command("notes", view.desk.folder),
        view.desk.clock.now_ms(),
        extra={"table": table},
    )


async def _prepare(view: View, kind: str) -> Form:
    name, text = view.needed("name"), view.raw("text").replace("\r\n", "\n").strip()
    old = view.desk.notes.get(kind, name)
    if old is None and not await _exists(view, kind, name):
        raise missing(f"there is no {kind} {name}, or no broker that has it answers")
    is_given = view.is_set("given")
    fields = [
        Field("name", kind.capitalize(), "hidden", name),
        Field("given", "", "hidden", "1"),
        Field("text", "Note", "area", text if is_given or old is None else old.text,
              help=f"At most {CHARS_MAX:,} characters; empty deletes the note. Every viewer reads"
              " it."),
    ]  # fmt: skip
    if not is_given:
        return Form(fields, intro=f"What colleagues should know about the {kind} {name}.")
    if len(text) > CHARS_MAX:
        raise bad(f"the note has {len(text):,} characters: give at most {CHARS_MAX:,}")
    before = "" if old is None else old.text
    note = Note(kind, name, text, view.user.name, view.desk.clock.now_ms())

    async def perform(_admin: AdminClient) -> str:
        await view.desk.notes.put(note)
        return f"The note about {name} is {'stored' if text else 'deleted'}."

    refusal = "the note is already like this" if text == before else ""
    if text and old is None and view.desk.notes.is_full:
        refusal = f"there are {COUNT_MAX:,} notes already: delete some"
    return Form(
        fields,
        Plan(
            what=f"{'Write' if text else 'Delete'} the note about {name}",
            subject=name,
            before={"note": before},
            after={"note": text},
            consequences=[],
            command="",
            perform=perform,
            leads_to=view.href(f"/{kind}", name=name),
            refusal=refusal,
        ),
    )


async def _exists(view: View, kind: str, name: str) -> bool:
    snapshot = await view.snapshot()
    found: Any = snapshot.topic(name) if kind == "topic" else snapshot.group(name)
    return found is not None


async def prepare_topic(view: View) -> Form:
    return await _prepare(view, "topic")


async def prepare_group(view: View) -> Form:
    return await _prepare(view, "group")


PAGES: Final = (Page(PATH, "Notes", "notes.html", notes, menu="Notes"),)
ACTIONS: Final = (
    Action("topic.note", "/topic/note", "Keep the note", Role.OPERATOR, Risk.LOW, prepare_topic,
           section="/topics", by_post=True),
    Action("group.note", "/group/note", "Keep the note", Role.OPERATOR, Risk.LOW, prepare_group,
           section="/groups", by_post=True),
)  # fmt: skip
