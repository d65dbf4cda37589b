# SPDX-License-Identifier: Apache-2.0
"""Notes about topics and groups: written by operators, bounded, escaped, audited, kept."""

import shutil
import sqlite3
from functools import partial

import pytest

from cometmq.console import database
from cometmq.console import notes as stored
from cometmq.console.notes import CHARS_MAX, Note, NoteRefused, Notes
from cometmq.remoting.errors import StoreError
from cometmq.remoting.log import NO_LOG

from .desks import ADMIN, JSON, OPERATOR, VIEWER
from .test_hostile_names import NAMES, Inspector, hostile

TEXT = "Owner: shop team.\n<b>Call</b> before you delete it."


async def write(site, path, name, text, who=OPERATOR):
    form = {"name": name, "given": "1", "text": text}
    asked = await site.web.post(path, data=form, headers={**who, **JSON})
    if asked.status_code != 200 or asked.json()["plan"]["refusal"]:
        return asked
    form["mark"] = asked.json()["plan"]["mark"]
    return await site.web.post(path, data=form, headers={**who, **JSON})


@pytest.fixture
def site(sites):
    site = sites()
    site.snapshot = hostile(site.clock, "orders")
    return site


@pytest.mark.parametrize(("kind", "place"), [("topic", "/topics"), ("group", "/notes")])
async def test_a_note_is_written_shown_and_deleted(site, kind, place):
    path = f"/{kind}/note"
    assert (await write(site, path, "orders", f"  {TEXT}  ")).json()["outcome"] == "done"
    page = await site.web.get(place, headers=VIEWER)
    assert "Owner: shop team. &lt;b&gt;Call&lt;/b&gt; before you delete it." in " ".join(
        page.text.split()
    )
    assert "orders" in (await site.web.get(f"/{kind}s?find=shop", headers=VIEWER)).text
    (note,) = (await site.web.get("/notes", headers={**VIEWER, **JSON})).json()["data"]
    assert (note["kind"], note["name"], note["text"], note["user"]) == (kind, "orders", TEXT, "ops")
    (begun,) = [it for it in await site.audit.newest(9) if it.outcome == "begun"]
    assert (begun.action, begun.before, begun.after) == (
        f"{kind}.note", {"note": ""}, {"note": TEXT},
    )  # fmt: skip
    assert "already like this" in (await write(site, path, "orders", TEXT)).text
    assert (await write(site, path, "orders", "")).json()["outcome"] == "done"
    assert site.notes.all == []


async def test_only_operators_write_notes(site):
    assert (await write(site, "/topic/note", "orders", "x", VIEWER)).status_code == 403
    assert (await write(site, "/topic/note", "orders", "x", ADMIN)).status_code == 200


async def test_notes_are_bounded(site, monkeypatch):
    answer = await write(site, "/topic/note", "orders", "x" * (CHARS_MAX + 1))
    assert answer.status_code == 400
    assert "at most 2,000" in answer.json()["text"]
    assert (await write(site, "/topic/note", "nowhere", "x")).status_code == 404
    monkeypatch.setattr(stored, "COUNT_MAX", 1)
    await write(site, "/topic/note", "orders", "x" * CHARS_MAX)
    refused = await write(site, "/group/note", "orders", "y")
    assert "notes already" in refused.json()["plan"]["refusal"]
    with pytest.raises(NoteRefused, match="at most"):
        await site.notes.put(Note("group", "z", "y", "ops", 1))
    assert (await write(site, "/topic/note", "orders", "other")).status_code == 200


async def test_somebody_else_was_faster(site):
    form = {"name": "orders", "given": "1", "text": "mine"}
    asked = await site.web.post("/topic/note", data=form, headers={**OPERATOR, **JSON})
    await write(site, "/topic/note", "orders", "theirs")
    form["mark"] = asked.json()["plan"]["mark"]
    late = await site.web.post("/topic/note", data=form, headers={**OPERATOR, **JSON})
    assert late.status_code == 409
    assert site.notes.get("topic", "orders").text == "theirs"


@pytest.mark.parametrize("path", ["/notes", "/topics", "/groups", "/topic/note?name=orders"])
async def test_hostile_notes_are_only_text(site, path):
    for number, text in enumerate(NAMES):
        await site.notes.put(Note("topic", "orders", text[:CHARS_MAX], text[:99], 1))
        await site.notes.put(Note("group", f"{text}{number}", text[:CHARS_MAX], text[:99], 1))
        page = await site.web.get(path, headers=OPERATOR)
        assert page.status_code == 200
        inspector = Inspector()
        inspector.feed(page.text)
        assert inspector.faults == [], text


async def test_notes_survive_a_restart_and_a_damaged_file_is_put_aside(tmp_path):
    notes = Notes(tmp_path, log=NO_LOG)
    await notes.open()
    note = Note("topic", "orders", TEXT, "ops", 5)
    await notes.put(note)
    await notes.close()
    again = Notes(tmp_path, log=NO_LOG)
    await again.open()
    assert again.of("topic") == {"orders": note}
    assert again.get("group", "orders") is None
    await again.close()
    (tmp_path / "notes.db").write_bytes(b"no database" * 1_000)
    empty = Notes(tmp_path, log=NO_LOG)
    await empty.open()
    assert empty.all == []
    assert (tmp_path / "notes.damaged").exists()
    await empty.put(note)
    await empty.close()


async def test_a_healthy_file_that_cannot_be_read_now_stays(tmp_path, monkeypatch):
    notes = Notes(tmp_path, log=NO_LOG)
    note = Note("topic", "orders", TEXT, "ops", 5)
    await notes.put(note)
    await notes.close()
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, timeout=0))
    other = sqlite3.connect(tmp_path / "notes.db")
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("CREATE TABLE other (x)")
    with pytest.raises(StoreError, match=r"cannot open .*notes.db: database is locked; end other"):
        await notes_of(tmp_path)
    other.close()
    assert await notes_of(tmp_path) == [note]
    assert [it.name for it in tmp_path.iterdir()] == ["notes.db"]


async def test_each_damaged_file_is_kept_with_its_log(tmp_path):
    first, saved = Notes(tmp_path / "first", log=NO_LOG), tmp_path / "second"
    await first.put(Note("topic", "orders", TEXT, "ops", 5))
    shutil.copytree(tmp_path / "first", saved)  # as a kill leaves it: the note is in the log
    await first.close()
    log = (saved / "notes.db-wal").read_bytes()
    assert TEXT.encode() in log
    for number in ("", "2", "3"):
        (saved / "notes.db").write_bytes(b"no database" * 1_000)
        (saved / "notes.db-wal").write_bytes(log[:24])  # its header: no whole transaction
        assert await notes_of(saved) == []
        assert (saved / f"notes.damaged{number}").read_bytes() == b"no database" * 1_000


def test_a_log_is_put_aside_with_its_file(tmp_path):
    for end in ("", "-wal", "-shm"):
        (tmp_path / f"notes.db{end}").write_text(end)
    (tmp_path / "notes.damaged-wal").write_text("older")
    aside = database.put_aside(tmp_path / "notes.db")
    assert {it.name: it.read_text() for it in tmp_path.iterdir()} == {
        "notes.damaged-wal": "older",
        **{f"{aside.name}{end}": end for end in ("", "-wal", "-shm")},
    }


async def notes_of(folder):
    notes = Notes(folder, log=NO_LOG)
    try:
        await notes.open()
        return notes.all
    finally:
        await notes.close()


async def test_a_note_that_cannot_be_stored_changes_nothing(tmp_path):
    notes = Notes(tmp_path / "folder", log=NO_LOG)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.db").mkdir()
    with pytest.raises(NoteRefused, match="cannot be stored"):
        await notes.put(Note("topic", "orders", TEXT, "ops", 5))
    assert notes.all == []
    await notes.close()
