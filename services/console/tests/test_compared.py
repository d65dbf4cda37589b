# SPDX-License-Identifier: Apache-2.0
"""The claims of the guide that compares consoles, about groups and messages, on a real suite."""

import re
from contextlib import AsyncExitStack

from cometmq.client import ConsumeFrom, ConsumeResult, Message, Producer, PushConsumer, PushOptions
from cometmq.client.admin.figures import BrokerFigures
from cometmq.client.testing import eventually
from cometmq.insight.model import Broker, BrokerState, Disk

from .desks import snapshot
from .message_pages import data, page

HOUR_S = 3_600


async def test_members_that_disagree(live, plain_suite, plain_admin):
    """Members of one group ask for different tags: each loses messages to the other."""
    await plain_admin.create_topic("Split", queue_count=2)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)

    async def listen(_messages):
        return ConsumeResult.SUCCESS

    async with AsyncExitStack() as stack:
        for tag in ("red", "blue"):
            member = PushConsumer("split", plain_suite.namesrv, listener=listen, options=options)
            member.subscribe("Split", tag)
            await stack.enter_async_context(member)

        async def disagreed():
            group = (await data(live, "/group", name="split"))["group"]
            return group["disagreements"] and len(group["members"]) == 2 and group

        group = await eventually(disagreed)
        assert "Split" in group["disagreements"][0]

        async def owned():
            rows = (await data(live, "/group", name="split"))["owners"]
            return rows and all(it["owners"] for it in rows) and rows

        clients = {it["client_id"] for it in group["members"]}
        assert {owner for it in await eventually(owned) for owner in it["owners"]} <= clients
        text = await page(live, "/group", name="split")
        assert 'data-title="Owners"' in text
        assert "Members subscribe to different things" in text
        for member in group["members"]:
            assert member["client_id"] in text
            assert member["version"]
        assert "members disagree" in await page(live, "/groups", find="split")


async def test_lag_and_loss_without_members(live, plain_suite, plain_admin):
    await plain_admin.create_topic("Left", queue_count=1)
    async with Producer("left-producers", namesrv=plain_suite.namesrv) as producer:
        for number in range(3):
            await producer.send(Message("Left", b"%d" % number))
    await plain_admin.reset_offsets("left", "Left", 0, is_new_group=True)

    async def behind():
        group = (await data(live, "/group", name="left"))["group"]
        return group["lag"] == 3

    await eventually(behind)
    loss_s = (await data(live, "/group", name="left"))["time_to_loss_s"]
    kept_h = float((await (await _master(plain_admin)).config())["fileReservedTime"])
    assert 0 < loss_s <= kept_h * HOUR_S
    assert loss_s > (kept_h - 1) * HOUR_S
    rows = {it["name"]: it for it in await data(live, "/topics")}
    assert (rows["Left"]["messages"], rows["Left"]["groups"]) == (3, ["left"])
    text = await page(live, "/topics", find="Left", sort="-lag")
    (row,) = [it for it in text.split("<tr") if ">Left<" in it]
    shown = re.sub(r"\s*<[^>]+>\s*", "|", row)
    assert shown.count("|3|") == 2, "its messages, and its largest lag"
    headings = re.findall(r'<th scope="col".*?>([^<>]+)<', text)
    assert {"In", "Messages", "Groups", "Largest lag"} <= {it.strip() for it in headings}


async def _master(admin):
    return next(iter((await admin.masters()).values()))


async def test_copies_are_shown_with_their_roles_and_lag(sites):
    site = sites()
    copies = [
        Broker("c", "a", number, f"a{number}:1", BrokerState(BrokerFigures(), Disk(0.5), behind))
        for number, behind in ((0, None), (1, 6 << 20))
    ]
    site.snapshot = snapshot(site.clock, brokers=copies)
    text = await page(site, "/brokers")
    rows = [re.sub(r"\s*<[^>]+>\s*", "|", it) for it in text.split("<tr") if 'scope="row"' in it]
    assert ["|master|" in it for it in rows] == [True, False]
    assert ["|slave|" in it for it in rows] == [False, True]
    assert ["6.0 MiB" in it for it in rows] == [False, True]
