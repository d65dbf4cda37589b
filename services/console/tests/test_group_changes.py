# SPDX-License-Identifier: Apache-2.0
"""A group whose brokers have different settings is changed at each, in what was changed only."""

import msgspec

from cometmq.client import AdminClient
from cometmq.insight.model import Group
from cometmq.peers.fakes import Fakes, body
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.remoting.command import Reply

from .desks import ADMIN, JSON, snapshot

FORM = {"group": "G", "retries": "5", "enabled": "yes"}


async def test_each_broker_keeps_what_was_not_changed(sites):
    first = SubscriptionGroupConfig(group_name="G", retry_max_times=5)
    second = msgspec.structs.replace(first, retry_max_times=16, retry_queue_nums=3)
    changed = []

    def change(_broker, call):
        changed.append(decode_json(SubscriptionGroupConfig, call.body))
        return Reply()

    async with Fakes() as fakes:
        for name, config in (("a", first), ("b", second)):
            table = body(SubscriptionGroupTable(subscription_group_table={"G": config}))
            await fakes.start(
                name,
                get_all_subscriptiongroup_config=table,
                update_and_create_subscriptiongroup=change,
            )
        async with AdminClient(fakes.namesrv) as admin:
            site = sites(admin=admin)
            group = Group("G", False, 16, True, (), None, None, (), [], 0, 0.0, 0.0, 0, 0)
            site.snapshot = snapshot(site.clock, groups=[group])
            headers = {**JSON, **ADMIN}
            shown = await site.web.get("/group/alter", params=FORM, headers=headers)
            assert shown.status_code == 200, shown.text
            plan = shown.json()["plan"]
            assert plan["refusal"] == "", "the second broker has another limit"
            sent = {**FORM, "mark": plan["mark"]}
            done = await site.web.post("/group/alter", data=sent, headers=headers)
    assert done.status_code == 200, done.text
    assert changed == [first, msgspec.structs.replace(second, retry_max_times=5)]
