# SPDX-License-Identifier: Apache-2.0
"""Many dead letters at once, and the correction of texts."""

from urllib.parse import urlencode

import msgspec
import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.testing import eventually
from cometmq.console.pages.dead_letter import TEXT_BYTES_MAX, editable
from cometmq.console.pages.dead_letters import SHOWN_MAX

from .desks import JSON, OPERATOR, hidden

FORM = {"content-type": "application/x-www-form-urlencoded"}
PACKED = msgspec.msgpack.encode({"price": 3})


async def bury(suite, admin, group, bodies):
    """Make dead letters of a group; return their offset message ids in the order of the bodies."""
    topic = f"{group}-origin"
    await admin.create_topic(topic, queue_count=1)
    async with Producer("buriers", namesrv=suite.namesrv) as producer:
        for at in range(0, len(bodies), 32):
            await producer.send_batch([Message(topic, it) for it in bodies[at : at + 32]])

    async def give_up(_messages):
        return ConsumeResult.DEAD_LETTER

    async def found():
        return [it async for it in admin.dead_letters(group)]

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer(group, suite.namesrv, listener=give_up, options=options)
    consumer.subscribe(topic)
    async with consumer:

        async def buried():
            return len(await found()) == len(bodies)

        await eventually(buried)
    letters = {it.body: it.offset_message_id for it in await found()}
    return [letters[it] for it in bodies]


async def stored(admin, topic):
    """Return the messages of a topic with one queue."""
    (queue,) = await admin.queues(topic)
    end = await admin.max_offset(queue)
    return [it async for pulled in admin.read(queue, 0, end) for it in pulled.messages]


async def post(live, path, form):
    """Send a form as a browser does."""
    return await live.web.post(path, content=urlencode(form, doseq=True), headers=FORM)


async def test_all_dead_letters_that_a_page_shows_can_be_ticked(live, plain_suite, plain_admin):
    group, bodies = "many-dead", [b"letter %d" % at for at in range(SHOWN_MAX + 20)]
    ids = await bury(plain_suite, plain_admin, group, bodies)
    await plain_admin.create_topic("ManyReplayed", queue_count=1)
    await live.log_in("operator")
    page = await live.web.get(f"/dead-letters/group?group={group}")
    assert "only the first 500 are shown" in page.text
    assert page.text.count('name="ids"') == SHOWN_MAX
    assert 'method="post" action="/dead-letters/replay"' in page.text
    form = {"csrf": hidden(page, "csrf"), "group": group, "ids": ids[:SHOWN_MAX]}
    plan = await post(live, "/dead-letters/replay", form)
    assert f"Send {SHOWN_MAX} dead letters of {group}" in plan.text
    form |= {"topic": "ManyReplayed", "rate": "10000"}
    plan = await post(live, "/dead-letters/replay", form)
    done = await post(live, "/dead-letters/replay", {**form, "mark": hidden(plan, "mark")})
    assert done.status_code == 303, done.text

    async def ended():
        found = await live.web.get(f"/dead-letters/progress?group={group}", headers=JSON)
        return not found.json()["data"]["is_running"]

    await eventually(ended)
    stats = await plain_admin.topic_stats("ManyReplayed")
    assert sum(it.max_offset for it in stats.values()) == SHOWN_MAX
    refused = await post(live, "/dead-letters/replay", {**form, "ids": ids})
    assert refused.status_code == 400
    assert "at most 500 values of ids" in refused.text
    nowhere = {"group": group, "topic": "Nowhere"}
    plan = await live.web.get("/dead-letters/replay", params=nowhere, headers={**JSON, **OPERATOR})
    assert "no broker has the topic Nowhere" in plan.json()["plan"]["refusal"]
    everything = {"group": group, "rate": "10000", "topic": "ManyReplayed"}
    plan = await live.web.get("/dead-letters/replay", params=everything, headers=OPERATOR)
    assert f"Send {len(bodies)} dead letters" in plan.text


@pytest.mark.parametrize("body", [PACKED, b"x" * (TEXT_BYTES_MAX + 1)], ids=["bytes", "long"])
async def test_what_a_browser_cannot_edit_is_exported(live, plain_suite, plain_admin, body):
    group = f"unedited-{len(body)}"
    (id_,) = await bury(plain_suite, plain_admin, group, [body])
    await live.log_in("operator")
    page = await live.web.get("/dead-letters/edit", params={"group": group, "id": id_})
    assert page.status_code == 200
    assert f"cometmq dlq export {group} --id {id_}" in page.text
    assert "textarea" not in page.text
    answer = await live.web.post(
        "/dead-letters/edit", data={"group": group, "id": id_}, headers={**JSON, **OPERATOR}
    )
    assert answer.json()["plan"] is None


async def test_a_long_text_is_edited(live, plain_suite, plain_admin):
    group, text = "long-dead", "\n" + "wörter und\r\n".replace("\r", "") * 9_000
    ids = await bury(plain_suite, plain_admin, group, [text.encode()])
    await plain_admin.create_topic("TextCorrected", queue_count=1)
    await live.log_in("operator")
    page = await live.web.get("/dead-letters/edit", params={"group": group, "id": ids[0]})
    assert len(text.encode()) < TEXT_BYTES_MAX
    assert f'<textarea name="body" rows="6">\n{text}</textarea>' in page.text
    form = {
        "csrf": hidden(page, "csrf"), "group": group, "id": ids[0], "edited": "1",
        "topic": "TextCorrected", "tag": "", "keys": "", "body": text.replace("\n", "\r\n"),
    }  # fmt: skip
    plan = await post(live, "/dead-letters/edit", form)
    assert "Nothing was changed." in plan.text
    form["body"] += "end"
    plan = await post(live, "/dead-letters/edit", form)
    assert "Nothing was changed." not in plan.text
    done = await post(live, "/dead-letters/edit", {**form, "mark": hidden(plan, "mark")})
    assert done.status_code == 303, done.text
    (sent,) = await stored(plain_admin, "TextCorrected")
    assert sent.body.decode() == text + "end"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b"plain", "plain"),
        ("tab\tund 👩‍👩‍👧 ü\u3000".encode(), "tab\tund 👩‍👩‍👧 ü\u3000"),
        (b"a\r\nb\r\n", "a\nb\n"),
        (b"a\r\nb\n", None),
        (b"a\rb", None),
        (b"\0", None),
        (b"\x1b[2J", None),
        (b"\xc2\x85", None),
        (b"\xff", None),
    ],
)
def test_only_what_a_browser_keeps_is_edited(body, shown):
    assert editable(body) == shown
