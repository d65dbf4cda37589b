# SPDX-License-Identifier: Apache-2.0
"""Who may read messages: by account, and by role."""

import pytest

from cometmq.client import Message, Producer
from cometmq.client.settings import ProducerOptions
from cometmq.console.login.reading_rights import ReadingRights
from cometmq.console.login.roles import Role, User
from cometmq.remoting.errors import SettingsError

from .desks import ADMIN, JSON, OPERATOR, VIEWER
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
