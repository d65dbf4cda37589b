# SPDX-License-Identifier: Apache-2.0
"""Each column of a list is in its JSON."""

import re

import pytest

from cometmq.client import MessageQueue
from cometmq.insight.model import Group, GroupTopic, Refusal, Topic, TopicKind
from cometmq.remoting.bodies.stats import TopicOffset

from .desks import JSON, FakeAdmin, snapshot

GROUP = Group(
    name="billing", is_system=False, retries=16, is_enabled=True, members=[], model=None,
    consume_type=None, subscriptions=[], topics=[GroupTopic("orders", 1, 3, 9, 61.0)], lag=9,
    behind_s=61.0, out_per_s=0.0, dead_letters=4, retry_backlog=0, dead_sent=1,
)  # fmt: skip
TOPIC = Topic("orders", TopicKind.NORMAL, 6, 4, 4, ["a"], 12, 12, 1.0, 1_000)
REFUSAL = Refusal("a", 310, 13, "the message is illegal", "c:7", "orders", 3, 1_000, 2_000)


class Newest(FakeAdmin):
    async def topic_stats(self, _topic):
        return {MessageQueue("%DLQ%billing", "a", 0): TopicOffset(0, 4, 3_000)}


FIELDS = {
    "/groups": {
        "Group": "name", "State": "state", "Lag": "lag", "Behind": "behind_s",
        "Not reading since": "still_since", "Time to loss": "loss_s", "Retried": "retried_per_s",
        "Dead letters": "dead_letters", "Members": "members",
    },
    "/dead-letters": {
        "Group": "group", "Dead letters": "dead_letters", "Not sent again": "not_sent_again",
        "Last": "last_ms", "Lag": "lag", "Retries at most": "retries",
    },
    "/push-back": {
        "Last": "last_ms", "Request": "code", "About": "subject", "Of whom": "peer",
        "Answer": "remark", "What helps": "advice", "Times": "count",
    },
}  # fmt: skip


@pytest.mark.parametrize("path", FIELDS)
async def test_each_column_of_a_list_has_a_field(sites, path):
    site = sites(admin=Newest())
    parts = {"groups": [GROUP], "topics": [TOPIC], "refusals": [REFUSAL]}
    site.snapshot = snapshot(site.clock, **parts)
    page = await site.web.get(path)
    head = page.text.partition("<thead>")[2].partition("</thead>")[0]
    titles = re.findall(r"<a [^>]*>([^<]+)</a>", head)
    assert titles == list(FIELDS[path])
    told = (await site.web.get(path, headers=JSON)).json()["data"]
    (row,) = told["refusals"] if path == "/push-back" else told
    assert set(FIELDS[path].values()) - row.keys() == set()
