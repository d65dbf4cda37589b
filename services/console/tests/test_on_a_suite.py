# SPDX-License-Identifier: Apache-2.0
"""Every page and every change on a real suite with accounts."""

import asyncio
import re
import sqlite3
from contextlib import AsyncExitStack, closing

import pytest
from msgspec import UNSET

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.clock import wall_ms
from cometmq.client.settings import ProducerOptions
from cometmq.console.pages import ACTIONS, PAGES
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.runtime.version import VERSION
from cometmq.testing.remoting.half_answers import half_answers

from .desks import JSON, hidden

DEADLINE_S = 60


async def log_in(desk, **form):
    page = await desk.web.get("/login")
    given = form or {"token": desk.token}
    return await desk.web.post("/login", data={"csrf": hidden(page, "csrf"), **given})


async def change(desk, path, confirm="", **form):
    """Request the plan of a change, and make it; return the plan's page and the answer."""
    page = await desk.web.get(path, params=form)
    assert page.status_code == 200, page.text
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark"), "confirm": confirm}
    return page, await desk.web.post(path, data={**form, **tokens})


async def eventually(condition):
    async with asyncio.timeout(DEADLINE_S):
        while not (found := await condition()):  # noqa: ASYNC110  # a page has no event
            await asyncio.sleep(0.05)
    return found


async def send(suite, topic, count):
    options = ProducerOptions(namesrv=suite.namesrv, credentials=suite.options.credentials)
    async with Producer("makers", options=options) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number))


def consumer(suite, group, topic):
    options = PushOptions(
        namesrv=suite.namesrv,
        credentials=suite.options.credentials,
        consume_from=ConsumeFrom.FIRST_OFFSET,
    )

    async def listen(_messages):
        return ConsumeResult.SUCCESS

    member = PushConsumer(group, listener=listen, options=options)
    member.subscribe(topic)
    return member


async def test_every_page_answers_in_both_forms(desk):
    await log_in(desk)
    for page in PAGES:
        if page.menu:
            assert (await desk.web.get(page.path)).status_code == 200, page.path
            answer = await desk.web.get(page.path, headers=JSON)
            assert answer.json()["command"], page.path


async def test_a_topic_from_its_creation_to_its_end(desk, suite):
    await log_in(desk)
    _, answer = await change(desk, "/topic/create", topic="walked", queues="4", perm="rw")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/topic?name=walked"
    await send(suite, "walked", 20)

    async def listed():
        data = (await desk.web.get("/topics", headers=JSON)).json()["data"]
        return [it for it in data if it["name"] == "walked" and it["messages"] == 20]

    await eventually(listed)
    page = await desk.web.get("/topic?name=walked")
    assert "The topic walked exists now" in page.text
    page, answer = await change(desk, "/topic/alter", topic="walked", read_queues="2", perm="rw")
    assert "Consumers lose " in page.text
    assert answer.status_code == 303
    configs = await (await desk.admin.masters()).popitem()[1].topics()
    assert configs["walked"].read_queue_nums == 2
    page, answer = await change(desk, "/topic/delete", "walked", topic="walked")
    assert "20 messages can no longer be read." in page.text
    assert answer.status_code == 303
    assert "walked" not in await desk.admin.topics()
    audit = (await desk.web.get("/audit", headers=JSON)).json()["data"]
    assert [(it["begun"]["action"], it["outcome"]) for it in audit] == [
        ("topic.delete", "done"), ("topic.alter", "done"), ("topic.create", "done"),
    ]  # fmt: skip
    assert audit[1]["begun"]["user"] == "admin"


async def test_the_page_of_a_topic_shows_its_attributes(desk):
    await log_in(desk)
    (master,) = (await desk.admin.masters()).values()
    for name, attributes in (("fifo", {"message.type": "FIFO"}), ("plain", UNSET)):
        config = TopicConfig(topic_name=name, attributes=attributes)
        await master.create_topic(config, is_new=True)

    async def page_of(name):
        page = await desk.web.get(f"/topic?name={name}")
        return page.text if page.status_code == 200 else ""

    assert "message.type=FIFO" in await eventually(lambda: page_of("fifo"))
    assert "Attributes" not in await eventually(lambda: page_of("plain"))


async def test_a_topic_that_takes_no_messages_says_so(desk):
    await log_in(desk)
    await change(desk, "/topic/create", topic="closed", queues="1", perm="r")

    async def shown():
        page = await desk.web.get("/topic?name=closed")
        return page.text if page.status_code == 200 else ""

    text = await eventually(shown)
    assert "Producers cannot send to it at " in text
    assert "no write permission there (cometmq topic alter closed --perm rw)" in text
    assert "Consumers cannot read it" not in text


async def test_messages_of_a_topic_are_deleted_as_previewed(desk, suite):
    await log_in(desk)
    await desk.admin.create_topic("purged", queue_count=1)
    await send(suite, "purged", 10)
    (queue,) = await desk.admin.queues("purged")
    form = {"topic": "purged", "before": "end"}
    page = await desk.web.get("/topic/trim", params=form)
    assert "Delete 10 messages of purged" in page.text
    assert "10 messages (" in page.text
    assert "topic trim purged --before end" in page.text
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    tokens |= {"seen": hidden(page, "seen"), "confirm": "purged"}
    await send(suite, "purged", 3)  # unseen by the user
    refused = await desk.web.post("/topic/trim", data={**form, **tokens, "confirm": "other"})
    assert refused.status_code == 400
    assert await desk.admin.min_offset(queue) == 0
    answer = await desk.web.post("/topic/trim", data={**form, **tokens})
    assert answer.status_code == 303, answer.text
    assert await desk.admin.min_offset(queue) == 10
    assert await desk.admin.max_offset(queue) == 13
    audit = (await desk.web.get("/audit", headers=JSON)).json()["data"]
    assert (audit[0]["begun"]["action"], audit[0]["outcome"]) == ("topic.trim", "done")
    place = f"{queue.broker_name}:0"
    assert audit[0]["begun"]["before"] == {f"{place}: first offset": 0}
    assert audit[0]["begun"]["after"] == {f"{place}: first offset": 10}
    empty = await desk.web.get("/topic/trim", params={**form, "before": "11", "queue": place})
    assert "Delete 1 message of purged" in empty.text
    none = await desk.web.get("/topic/trim", params={**form, "before": "10"})
    assert "there are no such messages" in none.text
    for wrong in ({"before": "tomorrow"}, {"before": "14"}, {"before": "1", "queue": "x"}):
        assert (await desk.web.get("/topic/trim", params={**form, **wrong})).status_code == 400
    own = {"topic": "SCHEDULE_TOPIC_XXXX", "before": "end"}
    page = await desk.web.get("/topic/trim", params=own)
    assert "cannot be trimmed" in page.text
    assert "Type <code>" not in page.text


async def test_a_group_from_its_creation_to_its_end(desk, suite):
    await log_in(desk)
    await desk.admin.create_topic("stepped", queue_count=2)
    await send(suite, "stepped", 10)
    _, answer = await change(desk, "/group/create", group="steppers", retries="5")
    assert answer.status_code == 303
    async with consumer(suite, "steppers", "stepped"):

        async def has_read():
            data = (await desk.web.get("/group?name=steppers", headers=JSON)).json().get("data")
            group = data and data["group"]
            return group and isinstance(group["lag"], int) and group["lag"] == 0 and group

        group = await eventually(has_read)
        (member,) = group["members"]
        page = await desk.web.get("/group?name=steppers")
        assert member["client_id"] in page.text
        asked = {"name": "steppers", "client": member["client_id"]}
        page = await desk.web.get("/group/member", params=asked)
        assert page.status_code == 200
        assert "stack=1" in page.text
        assert "Last pulled" in page.text
        assert "cachedMsgCount" not in page.text
        assert not re.search(r">\d{13}<", page.text), "times are readable"
        page = await desk.web.get("/group/member", params={**asked, "stack": "1"})
        assert re.search(r"<pre[^>]*>[^<]*deliver[^<]*File", page.text), "stacks of tasks"
        page = await desk.web.get("/group/delete?group=steppers")
        assert "stop them first" in page.text

    async def is_left():
        data = (await desk.web.get("/group?name=steppers", headers=JSON)).json()["data"]
        return not data["group"]["members"]

    await eventually(is_left)
    # It also reads its retry topic, which is rarely meant.
    topics = (await desk.web.get("/group?name=steppers", headers=JSON)).json()["data"]["group"]
    assert {it["topic"] for it in topics["topics"]} == {"%RETRY%steppers", "stepped"}
    page = await desk.web.get("/group/reset?group=steppers")
    assert '<option value="stepped" selected>' in page.text
    assert page.text.index('value="stepped"') < page.text.index('value="%RETRY%steppers"')
    page, answer = await change(desk, "/group/reset", group="steppers", topic="stepped", to="first")
    assert "10 messages are delivered again." in page.text
    assert answer.status_code == 303
    assert sum(it.lag for it in await desk.admin.lag("steppers", "stepped")) == 10
    data = (await desk.web.get("/group?name=steppers", headers=JSON)).json()["data"]
    assert 0 <= wall_ms() - data["oldest_unread_ms"] < 1_000 * DEADLINE_S
    page, answer = await change(desk, "/group/reset", group="steppers", topic="stepped", to="last")
    assert "10 messages that the group has not read are skipped." in page.text
    page, answer = await change(desk, "/group/alter", group="steppers", retries="3", enabled="no")
    assert answer.status_code == 303
    assert (await desk.admin.groups())["steppers"].retry_max_times == 3
    gone = {"group": "steppers", "offsets": "yes"}
    page, answer = await change(desk, "/group/delete", "steppers", **gone)
    assert "retry topic" in page.text, "it stays"
    assert answer.status_code == 303
    assert "steppers" not in await desk.admin.groups()


async def test_a_restarted_console_knows_since_when_a_group_reads_nothing(
    suite, start_console, tmp_path
):
    async def paused(desk):
        shown = await desk.web.get("/group?name=paused", headers=JSON)
        return shown.status_code == 200 and shown.json()["data"]["group"]["still_since"]

    async def is_kept():
        with closing(sqlite3.connect(tmp_path / "other" / "history.db")) as file:
            kept = "SELECT value FROM state WHERE name = 'pauses' AND instr(value, '\"paused\"')"
            return file.execute(kept).fetchall()

    async with AsyncExitStack() as stack:
        desk = await start_console(suite, stack=stack, historyInterval="1000")
        await log_in(desk)
        await desk.web.get("/groups")  # the first snapshot, before the group exists
        await desk.admin.create_topic("Paused", queue_count=1)
        await send(suite, "Paused", 3)
        await desk.admin.reset_offsets("paused", "Paused", 0, is_new_group=True)
        (broker,) = await desk.admin.masters()
        await desk.admin.commit_offset("paused", MessageQueue("Paused", broker, 0), 1)
        since = await eventually(lambda: paused(desk))
        assert not since["is_bound"]
        await eventually(is_kept)
    async with AsyncExitStack() as stack:
        desk = await start_console(suite, stack=stack, historyInterval="1000")
        await log_in(desk)
        assert await eventually(lambda: paused(desk)) == since


async def test_settings_of_a_broker(desk):
    await log_in(desk)
    name = next(iter(await desk.admin.masters()))
    page = await desk.web.get("/broker/settings", params={"name": name, "find": "aclEnable"})
    (row,) = [it for it in page.text.split("<tr>") if "</th>" in it and ">aclEnable<" in it]
    texts = re.sub(r"\s*<[^>]+>\s*", " ", row).split()
    assert texts[:4] == ["aclEnable", "yes", "true", "false"]
    assert "broker.conf" in row, "the file that sets it"
    page = await desk.web.get("/broker/settings", params={"name": name, "size": "500"})
    marks = re.findall(r'data-title="Changed">(\w+)', page.text)
    assert marks == sorted(marks, reverse=True), "first those that are not the default"
    assert len(set(marks)) == 2
    page, answer = await change(
        desk, "/broker/setting", name=name, id="0", key="fileReservedTime", value="71"
    )
    assert answer.status_code == 303
    for wrong in ("abc", "-1"):
        _, answer = await change(
            desk, "/broker/setting", name=name, id="0", key="fileReservedTime", value=wrong
        )
        assert answer.status_code == 400
        assert f"fileReservedTime={wrong}: must be" in answer.text
    page = await desk.web.get("/broker/settings", params={"name": name, "find": "fileReservedTime"})
    assert "71" in page.text
    assert "changed while running" in page.text
    assert ">72<" in page.text, "its default"
    default = {"name": name, "id": "0", "key": "fileReservedTime", "value": "72"}
    assert (await change(desk, "/broker/setting", **default))[1].status_code == 303
    page = await desk.web.get(
        "/broker/setting", params={"name": name, "key": "noSuchSetting", "value": "1"}
    )
    assert "has no setting noSuchSetting" in page.text
    secret = {"name": name, "key": "someSecretKey", "value": "hidden"}
    page = await desk.web.get("/broker/setting", params=secret)
    assert page.status_code == 400
    assert "may be a secret" in page.text


async def test_a_broker_shows_where_memory_and_time_go(desk):
    await log_in(desk)
    name = next(iter(await desk.admin.masters()))

    async def shown():
        answer = await desk.web.get("/broker", params={"name": name}, headers=JSON)
        return answer.json()["data"]["broker"]["state"]["memory"]

    memory = await shown()
    assert memory["resident_bytes"] == sum(it["size"] for it in memory["parts"])
    assert memory["limit_bytes"] > memory["resident_bytes"] > 10 << 20
    titles = {it["title"] for it in memory["parts"]}
    assert titles >= {"programs and libraries", "tables, connections and interpreter"}
    page = await desk.web.get("/broker", params={"name": name})
    for text in ("Where memory goes", "Where time goes", "Slowest send", "Used of the limit"):
        assert text in page.text
    disk = (await desk.web.get("/broker", params={"name": name}, headers=JSON)).json()
    assert 0 < disk["data"]["broker"]["state"]["disk"]["used_ratio"] < 1
    assert re.search(r"Used disk</dt>\s*<dd>[\d.]+ %", page.text)
    page = await desk.web.get("/brokers")
    assert "Memory" in page.text
    assert re.findall(r'data-title="Release">([^<]+)', page.text) == [f"CometMQ {VERSION}"]


async def test_push_back_names_an_http_client_at_the_port_of_a_broker(desk, suite):
    await log_in(desk)
    reader, writer = await asyncio.open_connection(*suite.broker.split(":"))
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    assert b"remoting" in await reader.read()
    writer.close()

    async def shown():
        page = await desk.web.get("/push-back", headers=JSON)
        return [it for it in page.json()["data"]["refusals"] if "HTTP client" in it["remark"]]

    (refusal,) = await eventually(shown)
    assert refusal["count"] == 1


async def test_a_message_is_sent(desk):
    await log_in(desk)
    await change(desk, "/topic/create", topic="sent-by-hand", queues="1", perm="rw")
    assert "Send a message" in (await desk.web.get("/topic?name=sent-by-hand")).text
    form = {"name": "sent-by-hand", "body": "first line\r\nsecond", "tag": "t", "keys": "k1 k2",
            "delay": "0"}  # fmt: skip
    page, answer = await change(desk, "/topic/send", **form)
    assert "it cannot be taken back" in page.text
    assert answer.status_code == 303

    async def arrived():
        found = await desk.web.get("/messages?topic=sent-by-hand&key=k2", headers=JSON)
        return found.json()["data"]

    (message,) = await eventually(arrived)
    assert (message["body"], message["tag"]) == ("first line\nsecond", "t")
    page = await desk.web.get("/topic/send?name=sent-by-hand&body=x&delay=99")
    assert page.status_code == 400
    assert (await desk.web.get("/topic/send?name=nowhere&body=x")).status_code == 404


# -- accounts -----------------------------------------------------------------------------------


async def test_accounts_log_in_and_change_with_their_own_rights(desk):
    await log_in(desk, access_key="chief-key", secret_key="chief-secret")
    page = await desk.web.get("/")
    assert "chief-key" in page.text
    assert "admin, by account" in page.text
    _, answer = await change(desk, "/topic/create", topic="by-chief", queues="1", perm="rw")
    assert answer.status_code == 303
    desk.web.cookies.clear()
    answer = await log_in(desk, access_key="reader-key", secret_key="reader-secret")
    assert answer.status_code == 303
    assert "viewer, by account" in (await desk.web.get("/")).text
    assert (await desk.web.get("/topic/create?topic=x")).status_code == 403


async def test_a_promoted_account_is_still_bound_by_the_brokers(suite, start_console, tmp_path):
    async with AsyncExitStack() as stack:
        desk = await start_console(suite, stack=stack, accountRole="admin")
        await log_in(desk, access_key="reader-key", secret_key="reader-secret")
        _, answer = await change(desk, "/topic/create", topic="by-reader", queues="1", perm="rw")
        assert answer.status_code == 403
        assert "The cluster denies access" in answer.text
        assert "by-reader" not in await desk.admin.topics()


@pytest.mark.parametrize(
    "account",
    [("chief-key", "wrong-secret"), ("nobody-key", "chief-secret"), ("chief-key", "")],
)
async def test_wrong_accounts_are_refused(desk, account):
    answer = await log_in(desk, access_key=account[0], secret_key=account[1])
    assert answer.status_code == 401
    assert "no such account" in answer.text or "give an access key" in answer.text


@pytest.mark.parametrize(
    ("who", "what", "name", "answer"),
    [
        ("chief-key", "send", "orders", "admin: true"),
        ("reader-key", "send", "orders", "topicPerms: orders=DENY"),
        ("reader-key", "read", "else", "defaultTopicPerm: SUB"),
        ("reader-key", "send", "else", "defaultTopicPerm: SUB"),
        ("reader-key", "join", "team", "defaultGroupPerm: SUB"),
        ("nobody", "send", "orders", "does not know the account"),
    ],
)
async def test_may_x_do_y(desk, who, what, name, answer):
    await log_in(desk)
    params = {"who": who, "may": what, "subject": name}
    page = await desk.web.get("/accounts", params=params)
    assert answer in page.text
    is_yes = "Yes</strong>" in page.text
    assert is_yes == ((who, what) in {("chief-key", "send"), ("reader-key", "read"),
                                      ("reader-key", "join")})  # fmt: skip
    assert "chief-secret" not in page.text
    assert f"account may {who} {what} {name}" in page.text


async def test_a_wrong_question_about_rights_is_refused(desk):
    await log_in(desk)
    page = await desk.web.get("/accounts?who=chief-key&may=fly&subject=orders")
    assert page.status_code == 400
    assert "may must be send, read, join" in page.text


async def test_rights_of_an_account_change(desk):
    await log_in(desk)
    form = {"name": "reader-key", "topic_default": "SUB", "group_default": "SUB",
            "topics": "orders=DENY\nbooks=PUB|SUB", "groups": "", "admin": "no"}  # fmt: skip
    page = await desk.web.get("/account/alter", params=form)
    assert "reader-secret" not in page.text
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    short = await desk.web.post("/account/alter", data={**form, **tokens, "secret": "short"})
    assert "length should longer than 6" in short.text
    page = await desk.web.get("/account/alter", params=form)
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    given = {**form, **tokens, "secret": "reader-secret"}
    answer = await desk.web.post("/account/alter", data=given)
    assert answer.status_code == 303, answer.text
    params = {"who": "reader-key", "may": "send", "subject": "books"}
    assert "Yes</strong>" in (await desk.web.get("/accounts", params=params)).text
    desk.web.cookies.clear()
    answer = await log_in(desk, access_key="reader-key", secret_key="reader-secret")
    assert answer.status_code == 303
    master = next(iter((await desk.admin.masters()).values()))
    await master.put_account(
        AclAccount(
            access_key="reader-key", secret_key="reader-secret", default_topic_perm="SUB",
            default_group_perm="SUB", topic_perms=["orders=DENY"],
        )
    )  # fmt: skip


async def test_a_name_server_that_stops_in_an_answer_is_soon_asked_anew(suite, start_console):
    async with half_answers(suite.namesrv) as relay, AsyncExitStack() as stack:

        async def is_ready():
            relay.is_broken = not relay.broken_count
            return desk.app._watch.snapshot

        behind = suite._replace(namesrv=relay.address)
        desk = await start_console(behind, stack=stack)
        await eventually(is_ready)


def test_every_change_belongs_to_a_menu_entry():
    entries = {page.path for page in PAGES if page.menu}
    assert {action.section for action in ACTIONS} <= entries
