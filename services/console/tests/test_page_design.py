# SPDX-License-Identifier: Apache-2.0
"""What a person meets first on a page, and the forms of figures and times."""

import re

import pytest
from markupsafe import Markup
from msgspec import structs

from cometmq.console.web.cells import NUMERIC, cell
from cometmq.insight.consumer_groups import NO_AGE, NOT_AGED
from cometmq.insight.history import RATE_UNKNOWN
from cometmq.insight.model import Group, Since, Topic, TopicKind
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig

from .desks import ADMIN, snapshot
from .message_pages import TOPIC, page

GROUP = Group(
    name="billing", is_system=False, retries=16, is_enabled=True, members=[], model=None,
    consume_type=None, subscriptions=[], topics=[], lag=9, behind_s=61.0, out_per_s=0.0,
    dead_letters=4, retry_backlog=0,
)  # fmt: skip
ORDERS = Topic("orders", TopicKind.NORMAL, 6, 4, 4, ["a"], 12, 12, 1.0, 1_000)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (0.0, "latency", "below 1 ms"),
        (0.0004, "latency", "below 1 ms"),
        (0.0004, "duration", "below 1 ms"),
        (0.002, "latency", "2 ms"),
        (0, "duration", "0 s"),
        (0.03, "rate", "0.03/s"),
        (0, "rate", "0/s"),
    ],
)
def test_nothing_that_was_measured_is_rounded_to_zero(value, kind, shown):
    assert cell(value, kind) == shown


@pytest.mark.parametrize("kind", sorted(NUMERIC))
def test_a_cell_of_a_value_that_is_no_number_says_so(kind):
    for value in (float("inf"), float("nan")):
        assert "unknown" in cell(value, kind)


@pytest.mark.parametrize(
    ("unknown", "word"), [(RATE_UNKNOWN, "new"), (NOT_AGED, "new"), (NO_AGE, "unknown")]
)
def test_a_figure_that_comes_with_the_next_snapshot_is_new(unknown, word):
    found = cell(unknown, "rate")
    assert Markup(found).striptags() == word
    assert ('class="unknown"' in found) == (word == "unknown")
    assert unknown.reason in found


async def test_members_and_queues_come_before_the_history(live, plain_admin, send):
    await send()
    await plain_admin.create_group(SubscriptionGroupConfig(group_name="designed"))
    await plain_admin.reset_offsets("designed", TOPIC, 0, is_new_group=True)
    text = await page(live, "/group", name="designed")
    assert re.findall(r'<h2 id="(\w+)"', text) == [
        "members", "queues", "subscriptions", "delivery", "history",
    ]  # fmt: skip


async def test_all_times_have_one_form(sites):
    site = sites()
    since = Since(1_796_101_458_000)
    group = structs.replace(GROUP, still_since=since, has_read_nothing=True)
    site.snapshot = snapshot(site.clock, groups=[group])
    shown = Markup((await site.web.get("/groups")).text).striptags()
    times = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d ?\w+", shown)
    assert "2026-12-01 05:04:18 UTC" in times
    assert [it for it in times if not it.endswith(" UTC")] == []


async def test_messages_begin_with_a_choice_of_topics(sites):
    site = sites()
    system = structs.replace(ORDERS, name="%RETRY%g", kind=TopicKind.RETRY)
    site.snapshot = snapshot(site.clock, topics=[ORDERS, system])
    text = (await site.web.get("/messages")).text
    assert 'href="/messages?topic=orders"' in text
    assert re.findall(r'<option value="([^"]*)"></option>', text) == ["orders"]
    folded = text.partition('<details id="more">')[2].partition("</details>")[0]
    assert set(re.findall(r'name="(\w+)"', folded)) == {
        "id", "key", "since", "until", "tag", "sql", "broker", "queue", "offset", "count",
    }  # fmt: skip
    assert '<details id="more" open>' in (await site.web.get("/messages?key=k")).text


async def test_a_form_names_what_it_changes(live, send):
    await send()
    text = (await live.web.get("/topic/alter", params={"topic": TOPIC}, headers=ADMIN)).text
    (heading,) = re.findall(r"<h1>(.*)</h1>", text)
    assert heading.endswith(TOPIC)
