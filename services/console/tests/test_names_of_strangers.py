# SPDX-License-Identifier: Apache-2.0
"""No name that a peer can register hides the other topics and groups from a page."""

from contextlib import AsyncExitStack
from random import Random

import pytest

from cometmq.client import AdminClient, LitePullConsumer, Message, Producer
from cometmq.console.pages import PAGES
from cometmq.insight.snapshot import look
from cometmq.peers.long_forms import seeds
from cometmq.peers.shared.strangers import ODD_NAMES, Stranger
from cometmq.peers.suite import running_suite

from .conftest import FaultLog
from .desks import ADMIN, JSON
from .test_hostile_names import Inspector

TOPIC, GROUP = "GoodTopic", "good-group"
ELSEWHERE = {"/group/member", "/dead-letters/progress", "/runbook", "/message", "/dead-letter"}
"""Pages about one thing that is named otherwise."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    with running_suite(tmp_path_factory.mktemp("strange")) as suite:
        yield suite


@pytest.fixture
async def site(suite, sites):
    """Return a console of a suite with a message, a member and a producer."""
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient(suite.namesrv))
        await admin.create_topic(TOPIC, queue_count=1)
        producer = await stack.enter_async_context(Producer("senders", suite.namesrv))
        await producer.send(Message(TOPIC, b"a", keys=["k"]))
        consumer = LitePullConsumer(GROUP, suite.namesrv)
        consumer.subscribe(TOPIC)
        await stack.enter_async_context(consumer)
        await consumer.poll()
        site = sites(admin=admin)

        async def fresh():
            return await look(admin)

        site.desk.snapshot = fresh
        site.desk.log = FaultLog()
        yield site


def odd(seed):
    """Return the names that are known to be odd, or others."""
    random = Random(seed)
    signs = "".join(map(chr, (*range(1, 0x180), 0x202E, 0x2066, 0xFEFF, 0x1F4A9)))
    others = ["".join(random.choices(signs, k=random.randint(1, 120))) for _ in range(40)]
    return others if seed else ODD_NAMES


async def shown(site):
    """Return the status of each page, and what is on it."""
    found = {}
    for path in {it.path for it in PAGES} - ELSEWHERE:
        query = {
            "name": TOPIC if path.startswith("/topic") else GROUP,
            "topic": TOPIC,
            "group": GROUP,
        }
        page = await site.web.get(path, params=query, headers=ADMIN)
        inspector = Inspector()
        inspector.feed(page.text)
        assert inspector.faults == [], path
        answer = await site.web.get(path, params=query, headers={**ADMIN, **JSON})
        named = {it for it in (TOPIC, GROUP) if it in page.text}
        found[path] = page.status_code, answer.status_code, named
    return found


@seeds(1, long=10)
async def test_names_of_strangers_hide_no_others(site, suite, seed):
    before = await shown(site)
    assert TOPIC in before["/topics"][2]
    assert GROUP in before["/groups"][2]
    stranger = Stranger(suite.namesrv, suite.broker)
    await stranger.register(odd(seed), topic=TOPIC, group=GROUP)
    after = await shown(site)
    await stranger.close()
    lost = {
        path: (honest, after[path])
        for path, honest in before.items()
        if after[path][:2] != honest[:2] or honest[2] - after[path][2]
    }
    assert lost == {}
