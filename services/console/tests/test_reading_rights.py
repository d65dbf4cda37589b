# SPDX-License-Identifier: Apache-2.0
"""Who may read messages: by account, and by role."""

from typing import Any

import msgspec
import pytest

from cometmq.client import Message, Producer, TransactionProducer, TransactionState
from cometmq.client.settings import ClientOptions, ProducerOptions
from cometmq.console.login import accounts
from cometmq.console.login.accounts import ReadingRights
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import Session
from cometmq.console.pages import ACTIONS, PAGES
from cometmq.insight.snapshot import look
from cometmq.remoting.errors import AccessDenied, ConnectFailed, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials

from .desks import ADMIN, JSON, OPERATOR, VIEWER
from .marked import READERS, marked_messages
from .test_on_a_suite import log_in

RULES = "viewer=logs-*, public; operator=orders*,%DLQ%team"


@pytest.mark.parametrize(
    ("role", "topic", "may"),
    [
        (Role.VIEWER, "logs-web", True),
        (Role.VIEWER, "public", True),
        (Role.VIEWER, "orders", False),
        (Role.VIEWER, "LOGS-web", False),
        (Role.OPERATOR, "orders-eu", True),
        (Role.OPERATOR, "logs-web", True),
        (Role.OPERATOR, "%DLQ%team", True),
        (Role.OPERATOR, "%DLQ%others", False),
        (Role.ADMIN, "%DLQ%others", True),
    ],
)
def test_roles_read_the_topics_that_are_named(role, topic, may):
    why = ReadingRights(RULES).why_not(User("u", role, "token"), topic)
    assert (why == "") is may
    assert ReadingRights("").why_not(User("u", role, "token"), topic) == ""


@pytest.mark.parametrize("text", ["viewer", "nobody=x", "=x"])
def test_wrong_rules_are_refused(text):
    with pytest.raises(SettingsError, match="readableTopics"):
        ReadingRights(text)


async def test_a_role_sees_no_message_of_another_topic(plain_suite, plain_admin, sites):
    await plain_admin.create_topic("Secret", queue_count=1)
    async with Producer("secret-makers", namesrv=plain_suite.namesrv) as producer:
        sent = await producer.send(Message("Secret", b"the secret", keys=("hidden-key",)))
    message = await plain_admin.view_message(sent.message_id, "Secret")
    site = sites(admin=plain_admin, readableTopics="viewer=Public;operator=Secret")
    by_id = {"topic": "Public", "id": message.offset_message_id}
    for path, params in (
        ("/messages", {"topic": "Secret"}),
        ("/messages", {"topic": "Secret", "key": "hidden-key"}),
        ("/messages", by_id),
        ("/message", by_id),
        ("/message", {**by_id, "download": "1"}),
        ("/dead-letters/group", {"group": "team"}),
    ):
        for form in ({}, JSON):
            refused = await site.web.get(path, params=params, headers={**VIEWER, **form})
            assert refused.status_code == (404 if params.get("topic") == "Public" else 403), path
            assert "the secret" not in refused.text
    refused = await site.web.get("/messages?topic=Secret", headers=VIEWER)
    assert "the role viewer may not read messages of Secret" in refused.text
    for headers in (OPERATOR, ADMIN):
        params = {**by_id, "topic": "Secret"}
        page = await site.web.get("/message", params=params, headers=headers)
        assert (page.status_code, "the secret" in page.text) == (200, True)


async def test_a_role_sees_no_tag_of_another_topic_among_what_waits(
    plain_suite, plain_admin, sites
):
    """Lists of delayed messages and open transactions contain those of all topics."""
    tag = "hidden-tag"
    await plain_admin.create_topic("Closed", queue_count=1)

    async def unknown(*_args):
        return TransactionState.UNKNOWN

    async with (
        Producer("secret-makers", namesrv=plain_suite.namesrv) as producer,
        TransactionProducer(
            "secret-halves", plain_suite.namesrv, execute=unknown, check=unknown
        ) as halves,
    ):
        await producer.send(Message("Closed", b"x", tag=tag, delay_level=16))
        await halves.send_in_transaction(Message("Closed", b"x", tag=tag))
    site = sites(admin=plain_admin, readableTopics="viewer=Public;operator=Closed")
    (broker,) = await plain_admin.masters()
    for path, params in (
        ("/delayed/level", {"broker": broker, "level": "16"}),
        ("/transactions", {"sort": "tag"}),
    ):
        for form in ({}, JSON):
            for who, may_read in ((VIEWER, False), (OPERATOR, True)):
                answer = await site.web.get(path, params=params, headers={**who, **form})
                assert answer.status_code == 200
                assert "Closed" in answer.text
                assert (tag in answer.text) is may_read, (path, form)


MARK = "zq7mark"


async def test_no_page_and_no_form_shows_a_part_of_a_hidden_message(
    plain_suite, plain_admin, sites
):
    """All of them are asked, with names and ids of the topic, its group and its transaction."""
    cases = await marked_messages(plain_suite, plain_admin, "Masked", MARK)
    found = await look(plain_admin)

    async def shown_to(who, rules):
        site = sites(admin=plain_admin, readableTopics=rules)
        site.snapshot = found
        paths = [it.path for it in PAGES] + [it.path for it in ACTIONS]
        return {
            path
            for path in paths
            for params in cases
            for form in ({}, JSON)
            if MARK in (await site.web.get(path, params=params, headers={**who, **form})).text
        }

    assert await shown_to(OPERATOR, "operator=Public") == set()
    assert await shown_to(OPERATOR, "") == READERS


async def test_a_property_of_a_message_opens_no_other_topic(
    plain_suite, plain_admin, sites, monkeypatch
):
    """Only where messages of all topics wait does the broker itself name the topic in it."""
    await plain_admin.create_topic("Sealed", queue_count=1)
    async with Producer("secret-makers", namesrv=plain_suite.namesrv) as producer:
        sent = await producer.send(Message("Sealed", b"the secret"))
    found = await plain_admin.view_message(sent.message_id, "Sealed")
    properties = {**found.properties, "REAL_TOPIC": "Public"}

    async def view_message(*_args):
        return msgspec.structs.replace(found, properties=properties)

    monkeypatch.setattr(plain_admin, "view_message", view_message)
    site = sites(admin=plain_admin, readableTopics="viewer=Public")
    params = {"topic": "Sealed", "id": found.offset_message_id}
    refused = await site.web.get("/message", params=params, headers=VIEWER)
    assert (refused.status_code, "the secret" in refused.text) == (403, False)


@pytest.mark.parametrize("more", [{"topic": "Public"}, {"key": "guess"}])
async def test_dead_letters_go_nowhere_for_who_may_not_read_them(sites, more):
    site = sites(readableTopics="operator=Public")
    params = {"group": "team", **more}
    refused = await site.web.get("/dead-letters/replay", params=params, headers=OPERATOR)
    assert refused.status_code == 403
    assert "may not read messages of %DLQ%team" in refused.text


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([[]], ""),
        ([ConnectFailed("gone"), []], ""),
        ([[], AccessDenied("no right")], "may not read messages of T: "),
        ([ConnectFailed("gone")], "no broker answers"),
        ([], "no broker answers"),
    ],
)
async def test_without_an_answer_of_a_broker_nothing_is_readable(monkeypatch, answers, why):
    """The messages could come from a slave whose master, which was asked alone, is gone."""

    class Broker:
        def __init__(self, answer):
            self.answer = answer

        async def query(self, *_args, **_more):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    class Admin:
        options = ClientOptions(namesrv="n:9876")

        def __init__(self, **_more):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_error):
            pass

        async def broker_groups(self):
            return {"b": {at: Broker(it) for at, it in enumerate(answers)}}

    monkeypatch.setattr(accounts, "AdminClient", Admin)
    user, credentials = User("u", Role.VIEWER, "account"), SessionCredentials("u", "s")
    session = Session(user, credentials, 0)
    reader: Any = Admin()
    found = await accounts.account_why_not(reader, session, "T", NO_LOG)
    assert why in found
    assert bool(found) is bool(why)


async def test_an_account_reads_what_its_own_rights_allow(desk, suite):
    for topic in ("orders", "books-read"):
        await desk.admin.create_topic(topic, queue_count=1)
    options = ProducerOptions(namesrv=suite.namesrv, credentials=suite.options.credentials)
    async with Producer("rights-makers", options=options) as producer:
        for topic in ("orders", "books-read"):
            await producer.send(Message(topic, b"content of " + topic.encode()))
    await log_in(desk, access_key="reader-key", secret_key="reader-secret")
    page = await desk.web.get("/messages?topic=books-read")
    assert "content of books-read" in page.text
    page = await desk.web.get("/messages?topic=orders")
    assert page.status_code == 403
    assert "the account reader-key may not read messages of orders" in page.text
    assert "content of" not in page.text
    desk.web.cookies.clear()
    await log_in(desk, access_key="chief-key", secret_key="chief-secret")
    assert "content of orders" in (await desk.web.get("/messages?topic=orders")).text
