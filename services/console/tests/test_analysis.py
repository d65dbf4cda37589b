# SPDX-License-Identifier: Apache-2.0
"""The analysis of a topic, and its clone, on a real suite."""

from contextlib import AsyncExitStack

import pytest

from cometmq.client import Message, Producer
from cometmq.console.login.accounts import ReadingRights

from .desks import ADMIN, JSON, VIEWER

TOPIC = "examined"


@pytest.fixture
async def filled(plain_suite, plain_admin):
    if TOPIC not in await plain_admin.topics():
        await plain_admin.create_topic(TOPIC, queue_count=2)
        async with Producer("examined-p", namesrv=plain_suite.namesrv) as producer:
            for at in range(40):
                body, key = b"x" * (1 + at * 10), f"<b>{at % 4}</b>"
                await producer.send(Message(TOPIC, body, tag="t" if at % 2 else None, keys=(key,)))


async def test_a_topic_is_analysed(live, filled):
    page = await live.web.get(f"/topic/analysis?name={TOPIC}", headers=VIEWER)
    assert "All messages were read" in page.text
    assert "&lt;b&gt;1&lt;/b&gt;" in page.text
    assert "<b>" not in page.text
    assert "topic analyse examined --sample 1000" in page.text
    whole = await live.web.get(f"/topic/analysis?name={TOPIC}", headers={**VIEWER, **JSON})
    figures = whole.json()["data"]["figures"]
    assert (figures["messages"], figures["body_bytes"]) == (
        40,
        sum(1 + at * 10 for at in range(40)),
    )
    sizes = {it["percent"]: it["value"] for it in figures["sizes"]}
    assert (sizes[0], sizes[100]) == (1, 391)
    assert sum(it["count"] for it in figures["bars"]) == 40
    keys = {it["name"]: it["count"] for it in figures["keys"]["top"]}
    assert keys == {f"<b>{at}</b>": 10 for at in range(4)}
    assert [(it["name"], it["count"]) for it in figures["tags"]["top"]] == [("t", 20)]
    assert "391 B" in page.text
    asked = {"name": TOPIC, "sample": "10", "since": "1d"}
    answer = await live.web.get("/topic/analysis", params=asked, headers={**VIEWER, **JSON})
    data = answer.json()["data"]
    assert (data["messages"], data["figures"]["messages"]) == (40, 10)
    assert data["figures"]["tags"]["messages"] <= 10
    page = await live.web.get("/topic/analysis", params=asked, headers=VIEWER)
    assert "Figures of 10 messages" in page.text
    for wrong, status in (({"name": "nowhere"}, 404), ({**asked, "sample": "0"}, 400),
                          ({**asked, "since": "soon"}, 400), ({}, 400)):  # fmt: skip
        found = await live.web.get("/topic/analysis", params=wrong, headers={**VIEWER, **JSON})
        assert found.status_code == status, wrong


async def test_an_empty_topic_has_no_percentiles(live, plain_admin):
    await plain_admin.create_topic("examined-empty", queue_count=1)
    page = await live.web.get("/topic/analysis?name=examined-empty", headers=VIEWER)
    assert page.status_code == 200
    assert "Percentiles" not in page.text


async def test_only_who_may_read_messages_sees_their_keys(live, filled):
    live.desk.rights = ReadingRights("viewer=public-*")
    page = await live.web.get(f"/topic/analysis?name={TOPIC}", headers=VIEWER)
    assert page.status_code == 403
    page = await live.web.get(f"/topic/analysis?name={TOPIC}", headers=ADMIN)
    assert page.status_code == 200


async def test_few_samples_are_read_at_the_same_time(live, filled):
    async with AsyncExitStack() as stack:
        while not live.desk.analyses.locked():
            await stack.enter_async_context(live.desk.analyses)
        page = await live.web.get(f"/topic/analysis?name={TOPIC}", headers=VIEWER)
        assert page.status_code == 503
        assert "other samples are being read" in page.text
    page = await live.web.get(f"/topic/analysis?name={TOPIC}", headers=VIEWER)
    assert page.status_code == 200
