# SPDX-License-Identifier: Apache-2.0
"""Pages about messages, delays and clients, of a running suite."""

import asyncio
import gzip
import re
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.settings import ClientOptions
from cometmq.client.testing import eventually
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.insight.model import Producer as ShownProducer
from cometmq.insight.model import Refusal, Topic, TopicKind
from cometmq.insight.snapshot import look
from cometmq.peers.fakes import Fakes, body, hang
from cometmq.remoting.names import HALF_TOPIC
from cometmq.runtime.acl.errors import no_permission

from .conftest import FaultLog
from .desks import ADMIN, JSON, OPERATOR, VIEWER, snapshot
from .message_pages import NASTY, TOPIC, carry_out, data, page

BAD = (
    "pull_message", "get_min_offset", "get_max_offset", "query_message", "view_message_by_id",
    "get_all_delay_offset", "query_consumer_offset", "get_broker_config",
    "get_all_subscriptiongroup_config", "get_topic_stats_info",
)  # fmt: skip
_NUMBERS = re.compile(r"[0-9]{4}-[0-9-]+[T ][0-9:.+]+|\b[0-9A-F]{20,}\b|[0-9]+\.[0-9.:]+")


# -- messages -------------------------------------------------------------------------------------


async def test_messages_are_found_by_id_key_time_and_offset(live, send):
    message_id = await send(b"find me", keys=("needle",), tag="rare")
    await send(b"other")
    by_key = await data(live, "/messages", topic=TOPIC, key="needle")
    assert [it["body"] for it in by_key][-1] == "find me"
    assert (await data(live, "/messages", topic=TOPIC, id=message_id))[0]["tag"] == "rare"
    assert [it["body"] for it in await data(live, "/messages", topic=TOPIC, tag="rare")]
    newest = await data(live, "/messages", topic=TOPIC, count=1)
    assert [it["body"] for it in newest] == ["other"]
    place = {"broker": newest[0]["broker"], "queue": 0, "offset": newest[0]["queue_offset"]}
    assert (await data(live, "/messages", topic=TOPIC, **place)) == newest
    since = await data(live, "/messages", topic=TOPIC, since="10m", until="2999-01-01")
    assert "find me" in {it.get("body") for it in since}, "others may be damaged"


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, "--last 50"),
        ({"tag": "a || b", "count": 7}, "--tag 'a || b' --last 7"),
        ({"since": "10m"}, "--from 10m --max 50 --no-follow"),
        ({"since": "10m", "until": "5m"}, "--from 10m --until 5m --max 50"),
        ({"until": "5m", "sql": "a = 1"}, "--filter 'a = 1' --until 5m"),
        (
            {"broker": "{broker}", "queue": 0, "offset": 0},
            "--offset 0 --queue {broker}:0 --max 50 --no-follow",
        ),
    ],
)
async def test_the_command_of_a_search_makes_the_same_search(live, send, asked, options):
    await send()
    broker = (await data(live, "/messages", topic=TOPIC, count=1))[0]["broker"]
    params = {key: str(it).format(broker=broker) for key, it in asked.items()}
    answer = await live.web.get("/messages", params={"topic": TOPIC, **params}, headers=JSON)
    command = f"cometmq -n n:9876 consume {TOPIC} {options.format(broker=broker)}"
    assert answer.json()["command"] == command


async def test_a_search_says_what_is_wrong_with_it(live, send):
    await send()
    for params, reason in (
        ({"topic": "NoSuchTopic"}, "NoSuchTopic"),
        ({"topic": TOPIC, "id": "nothing"}, "nothing"),
        ({"topic": TOPIC, "sql": "a >"}, "column 3"),
        ({"topic": TOPIC, "tag": "a", "sql": "b = 1"}, "not both"),
        ({"topic": TOPIC, "since": "yesterday"}, "yesterday"),
        ({"topic": TOPIC, "offset": "1"}, "needs a broker"),
        ({"topic": TOPIC, "count": "9999"}, "between 1 and 500"),
    ):
        answer = await live.web.get("/messages", params=params, headers=JSON)
        assert answer.status_code in {400, 404}, (params, answer.text)
        assert reason in answer.json()["text"]


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b'{"a": [1, 2]}', "&#34;a&#34;: ["),
        (msgspec.msgpack.encode({"packed": 1}), "&#34;packed&#34;: 1"),
        (gzip.compress(b"zipped text"), "zipped text"),
        (bytes(range(256)), "f8 f9 fa fb"),
        (b"\xff" * ((4 << 20) - 5_000), "only the beginning is shown"),
    ],
    ids=["json", "msgpack", "gzip", "binary", "large"],
)
async def test_bodies_are_decoded_and_downloaded(live, send, body, part):
    message_id = await send(body)
    assert part in await page(live, "/message", topic=TOPIC, id=message_id)
    got = await live.web.get("/message", params={"topic": TOPIC, "id": message_id, "download": 1})
    assert got.content == body
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"].startswith('attachment; filename="')


async def test_the_life_of_a_message_is_on_its_page(live, send):
    message_id = await send()
    text = await page(live, "/message", topic=TOPIC, id=message_id)
    assert "sent from 127.0.0.1" in text
    assert f"cometmq -n n:9876 message trace {message_id} -t {TOPIC}" in text
    found = await data(live, "/message", topic=TOPIC, id=message_id)
    assert [it["happening"] for it in found["life"]["events"]][:2] == ["sent", "stored"]
    answer = await live.web.get("/message", params={"topic": TOPIC, "id": "x", "format": "elvish"})
    assert answer.status_code in {400, 404}


async def test_protobuf_needs_the_setting(live, send):
    message_id = await send()
    params = {"topic": TOPIC, "id": message_id, "type": "shop.Order"}
    answer = await live.web.get("/message", params=params, headers=JSON)
    assert (answer.status_code, "descriptorSet" in answer.json()["text"]) == (400, True)


# -- delays, push-back, clients -------------------------------------------------------------------


def waiting_ms(row):
    due, stored = (datetime.fromisoformat(row[name]) for name in ("due", "stored"))
    return (due - stored) / timedelta(milliseconds=1)


async def test_delayed_messages_are_shown_by_due_time(live, send):
    await send(b"later", delay_level=18)
    levels = await data(live, "/delayed")
    (level,) = [it for it in levels if it["level"] == 18]
    assert level["delay"] == "2h"
    rows = await data(live, "/delayed/level", broker=level["broker"], level=18)
    assert rows[0]["topic"] == TOPIC
    assert waiting_ms(rows[0]) == 7_200_000
    answer = await live.web.get("/delayed/level", params={"broker": "nobody"}, headers=JSON)
    assert answer.status_code == 503
    assert "cometmq -n n:9876 message delayed --levels" in await page(live, "/delayed")


async def test_a_level_is_not_read_for_ever(live, send, monkeypatch):
    """A broken broker answers each pull with no message and the next offset."""

    async def empty(_broker, _topic, _queue_id, offset, **_):
        return Pulled(PullStatus.NO_MATCHED, [], offset + 1, 0, 1 << 62)

    async def max_offset(*_):
        return 1 << 62

    await send(b"later", delay_level=18)
    (level,) = [it for it in await data(live, "/delayed") if it["level"] == 18]
    monkeypatch.setattr(BrokerAdmin, "pull", empty)
    monkeypatch.setattr(BrokerAdmin, "max_offset", max_offset)
    place = {"broker": level["broker"], "level": 18}
    async with asyncio.timeout(60):
        answer = await live.web.get("/delayed/level", params=place, headers=JSON)
    (why,) = answer.json()["unanswered"].values()
    assert "pulls in a row of SCHEDULE_TOPIC_XXXX, queue 17, without" in why


async def test_a_delayed_message_is_recalled(live, send):
    message_id = await send(b"never", delay_level=17)
    await live.log_in("operator")
    (level,) = [it for it in await data(live, "/delayed") if it["level"] == 17]
    place = {"broker": level["broker"], "level": 17}

    async def waiting():
        return {it["message_id"] for it in await data(live, "/delayed/level", **place)}

    assert message_id in await waiting()
    assert "Recall" not in await page(live, "/delayed/level", **place)  # a viewer
    shown = await live.web.get("/delayed/level", params=place)
    assert "Recall …" in shown.text
    form = {"topic": TOPIC, "message_id": message_id}
    assert (await carry_out(live, "/delayed/recall", form, confirm="other")).status_code == 400
    done = await carry_out(live, "/delayed/recall", form, confirm=message_id)
    assert done.status_code == 303, done.text
    there = await live.web.get(done.headers["location"])
    assert "is recalled: nobody gets it" in there.text
    assert message_id not in await waiting()
    again = await live.web.get("/delayed/recall", params=form, headers={**JSON, **OPERATOR})
    refusal = f"the message {message_id} is recalled already: nobody gets it"
    assert again.json()["plan"]["refusal"] == refusal
    again = await live.web.get("/delayed/recall", params=form)
    assert refusal in again.text
    assert "It cannot be undone" not in again.text
    assert 'name="confirm"' not in again.text
    assert (await carry_out(live, "/delayed/recall", form, confirm=message_id)).status_code == 409
    form["message_id"] = "missing"
    refused = await live.web.get("/delayed/recall", params=form, headers={**JSON, **OPERATOR})
    assert refused.status_code == 404
    assert "no delayed message of the topic Paged with the id missing waits" in refused.text


async def test_clients_are_shown_with_their_groups(live, plain_suite, send):
    await send()
    is_done = asyncio.Event()

    async def listen(_messages):
        is_done.set()

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("paged-group", plain_suite.namesrv, listener=listen, options=options)
    consumer.subscribe(TOPIC)
    async with consumer:
        await is_done.wait()

        async def joined():
            rows = await data(live, "/connections")
            return [it for it in rows if it["group"] == "paged-group"]

        (client,) = await eventually(joined)
        assert client["role"] == "consumer"
        assert "paged-producers" in await page(live, "/connections")
        assert "Disconnect" not in await page(live, "/connections")  # a viewer
        await live.log_in("operator")
        params = {"client": client["client_id"]}
        closed = await carry_out(live, "/client/disconnect", params)
        assert closed.status_code == 303, closed.text
        there = (await live.web.get(closed.headers["location"])).text
        assert re.search("[1-9] connections? of .* closed", there)
        await eventually(joined)  # its library connects again
    nobody = await carry_out(live, "/client/disconnect", {"client": "nobody"})
    assert (nobody.status_code, "no client nobody is connected" in nobody.text) == (502, True)


_LISTS = {"/messages", "/dead-letters/group", "/transactions", "/delayed/level"}
HANGING: Any = (
    ("/messages", {"topic": "T"}),
    ("/message", {"topic": "T", "id": "0A0000010000277600000000000004D2"}),
    ("/dead-letters/group", {"group": "G"}),
    ("/transactions", {}),
    ("/transactions/one", {"id": "a:1"}),
    ("/delayed/level", {"broker": "a", "level": "1"}),
    ("/topic", {"name": "T"}),
    ("/topic/analysis", {"name": "T"}),
    ("/topic/alter", {"topic": "T", "queues": "3"}),
    ("/topic/trim", {"topic": "T", "before": "end"}),
    ("/topic/delete", {"topic": "T"}),
    ("/topic/create", {"topic": "New"}),
    ("/group", {"name": "G"}),
    ("/group/reset", {"group": "G", "topic": "T", "to": "first"}),
    ("/group/alter", {"group": "G", "retries": "3"}),
    ("/group/delete", {"group": "G"}),
    ("/group/member", {"name": "G", "client": "c"}),
    ("/broker", {"name": "a"}),
    ("/broker/setting", {"name": "a", "key": "fileReservedTime", "value": "1"}),
    ("/dead-letters/replay", {"group": "G"}),
    ("/dead-letters/edit", {"group": "G", "id": "0A0000010000277600000000000004D2"}),
    ("/accounts", {"who": "a", "may": "send", "subject": "T"}),
    ("/definitions", {}),
)


@pytest.mark.parametrize(("path", "params"), HANGING, ids=[it[0] for it in HANGING])
@pytest.mark.parametrize("lie", [None, b"{{{", b"\xff" * 40], ids=["hangs", "lies", "garbage"])
async def test_a_broker_that_hangs_or_lies_gives_a_clear_text(sites, path, params, lie):
    async with Fakes() as fakes:
        answer = hang if lie is None else body(lie)
        await fakes.start("a", **dict.fromkeys(BAD, answer))
        options = ClientOptions(namesrv=fakes.namesrv, api_timeout_ms=300)
        async with AdminClient(options=options) as admin:
            site = sites(admin=admin)
            site.desk.log = FaultLog()

            async def fresh():
                return await look(admin, timeout_ms=300)

            site.desk.snapshot = fresh
            found = await site.web.get(path, params=params, headers={**JSON, **ADMIN})
    text = found.text
    assert found.status_code in {200, 400, 404, 502, 503}, text
    assert "not a name server" not in text, "the broker was never asked"
    if found.status_code == 200 and path in _LISTS:
        assert found.json()["unanswered"] or not found.json()["data"]


async def test_push_back_names_the_topics_that_producers_do_not_send_to(sites):
    site = sites()
    shut = [f"shut-{number:02}" for number in range(12)]
    topics = [
        Topic(name, kind, perm, 4, 4, ["a"], 1, 1, 0.0, 1)
        for kind, perm, names in (
            (TopicKind.NORMAL, 4, [NASTY, *shut]),
            (TopicKind.NORMAL, 6, ["open"]),
            (TopicKind.SYSTEM, 4, ["inner"]),
        )
        for name in names
    ]
    site.snapshot = snapshot(site.clock, refusals=[], topics=topics)
    text = await page(site, "/push-back")
    assert "No broker has refused a request lately." in text
    assert '<a href="/topic?name=shut-08">shut-08</a>, and 3 more.' in " ".join(text.split())
    for absent in ("shut-09", "name=open", "name=inner", "<script>alert"):
        assert absent not in text


async def test_push_back_says_who_why_and_what_helps(sites):
    site = sites()
    site.desk.log = FaultLog()
    refusal = Refusal("a", 310, 2, NASTY, "10.0.0.9:1", "T<b>", 7, 1_000, 2_000)
    site.snapshot = snapshot(site.clock, refusals=[refusal])
    text = await page(site, "/push-back")
    assert "SEND_MESSAGE_V2 (310)" in text
    assert "SYSTEM_BUSY (2)" in text
    assert "send more slowly" in text
    assert "those for topics that no broker has" in text  # producers refuse them themselves
    assert "<script>alert" not in text
    assert "T<b>" not in text
    expected = Refusal("a", 11, 17, "no topic", "10.0.0.8:1", HALF_TOPIC, 7, 1_000, 2_000)
    remark = no_permission("topic:T", is_default=True).remark
    denied = Refusal("a", 310, 1, remark, "10.0.0.9:1", "T", 7, 1_000, 2_000)
    clients = [ShownProducer("P", "p", f"/10.0.0.{it}:1", "JAVA", 401, ("a",)) for it in (8, 9)]
    site.snapshot = snapshot(site.clock, refusals=[expected, denied], producers=clients)
    text = await page(site, "/push-back")
    assert HALF_TOPIC not in text
    asked = await site.web.get("/push-back", headers={**JSON, **VIEWER})
    assert [it["subject"] for it in asked.json()["data"]["refusals"]] == ["T"]
    assert "No default permission for topic:T" in text
    assert '<a href="/accounts">give the client' in text
    assert "java" not in text
    named = msgspec.structs.replace(denied, remark=f"{remark} (account guest)")
    site.snapshot = snapshot(site.clock, refusals=[named], producers=clients)
    text = await page(site, "/push-back")
    assert '<a href="/accounts?who=guest&amp;may=send&amp;subject=T">give the account' in text
    site.snapshot = snapshot(site.clock, refusals=[expected, denied], producers=clients)
    text = await page(site, "/connections")
    assert "No default permission" in text
    assert "AclException" not in text
    assert "no topic" not in text
    site.snapshot = snapshot(site.clock)
    text = await page(site, "/push-back")
    assert "Who was refused is unknown" in text
    assert "without write permission" not in text
    assert "known" in await page(site, "/connections")
