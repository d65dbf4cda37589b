# SPDX-License-Identifier: Apache-2.0
"""Pages of a cluster with 1,000 topics and 2,000 groups are quick and bounded."""

import re
import time

import msgspec
import pytest
from markupsafe import Markup

from cometmq.client.admin.figures import BrokerFigures, Load
from cometmq.insight.findings import findings
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Disk,
    Group,
    GroupTopic,
    Since,
    Topic,
    TopicKind,
    Unknown,
)

from .desks import ADMIN, JSON, snapshot

TOPICS, GROUPS, BROKERS = 1_000, 2_000, 20
BUDGET_S = 0.1
PAGE_BYTES_MAX = 250_000


def topic(number):
    groups = [f"group-{number:04}", f"group-{number + TOPICS:04}"]
    return Topic(
        name=f"topic-{number:04}",
        kind=TopicKind.NORMAL,
        perm=6,
        read_queues=8,
        write_queues=8,
        brokers=["broker-00"],
        messages=number,
        end=number,
        in_per_s=number / 7,
        last_write_ms=1_700_000_000_000,
        groups=groups,
    )


def group(number):
    own = GroupTopic(f"topic-{number % TOPICS:04}", 8, 5, number, number / 3)
    return Group(
        f"group-{number:04}", False, 16, True, (), None, None, (), [own], number,
        number / 3, 1.5, 0, 0,
    )  # fmt: skip


def broker(number):
    figures = BrokerFigures(version="V4_9_4", incoming=Load(tps=5.0))
    state = BrokerState(figures, Disk(0.5), settings={"fileReservedTime": "72"})
    return Broker("C", f"broker-{number:02}", 0, "10.0.0.1:10911", state)


@pytest.fixture
def large(sites):
    site = sites()
    site.snapshot = snapshot(
        site.clock,
        brokers=[broker(number) for number in range(BROKERS)],
        topics=[topic(number) for number in range(TOPICS)],
        groups=[group(number) for number in range(GROUPS)],
    )
    return site


@pytest.mark.load
@pytest.mark.parametrize(
    "path",
    ["/", "/brokers", "/topics", "/topics?sort=-lag&size=100", "/topics?find=7&sort=in",
     "/groups", "/groups?sort=name&page=20", "/groups?find=topic-09&size=100"],
)  # fmt: skip
async def test_lists_are_quick(large, path):
    best_s = float("inf")
    for _ in range(5):  # the best of five: the machine may be busy
        begin_s = time.process_time()
        page = await large.web.get(path, headers=ADMIN)
        best_s = min(best_s, time.process_time() - begin_s)
        assert page.status_code == 200
        assert len(page.content) < PAGE_BYTES_MAX
    assert best_s < BUDGET_S


@pytest.mark.load
def test_what_is_wrong_is_found_quickly_with_many_brokers(large):
    brokers = [broker(number) for number in range(200)]
    found, best_s = msgspec.structs.replace(large.snapshot, brokers=brokers), float("inf")
    assert len(findings(found)) > GROUPS // 2
    for _ in range(3):
        begin_s = time.process_time()
        findings(found)
        best_s = min(best_s, time.process_time() - begin_s)
    assert best_s < BUDGET_S


async def test_lists_are_sorted_filtered_and_cut_on_the_server(large):
    page = await large.web.get("/groups?sort=-lag")
    assert "group-1999" in page.text
    assert "group-0000" not in page.text
    assert "Page 1 of 40" in page.text
    page = await large.web.get("/groups?sort=-lag&page=40")
    assert "group-0000" in page.text
    page = await large.web.get("/groups?find=GROUP-12+topic-02")
    assert page.text.count("/group?name=group-12") == 50 or "100 of 2,000" in page.text
    page = await large.web.get("/groups?find=no-such")
    assert "Nothing matches the filter" in page.text
    page = await large.web.get("/groups?sort=nonsense&size=7&page=99999")
    assert page.status_code == 200


async def test_groups_whose_messages_fail_again_and_again_are_seen(sites):
    """Their lag is 0, because the messages wait in the delay levels."""
    site = sites()
    retried = msgspec.structs.replace(
        topic(7), name="%RETRY%group-0001", kind=TopicKind.RETRY, in_per_s=2.5
    )
    groups = [group(1), group(2)]
    site.snapshot = snapshot(site.clock, topics=[topic(1), retried], groups=groups)
    page = await site.web.get("/groups?sort=-retried")
    rates = re.findall(r'data-title="Retried">(.*?)</td>', page.text)
    assert rates == ["2.5/s", "0/s"]


async def test_a_time_that_no_broker_tells_has_no_column(large):
    assert "Last message" in (await large.web.get("/topics")).text
    untold = [msgspec.structs.replace(topic(at), last_write_ms=Unknown("-")) for at in range(3)]
    large.snapshot = snapshot(large.clock, topics=untold)
    page = await large.web.get("/topics?sort=last")
    assert page.status_code == 200
    assert "Last message" not in page.text


async def test_the_list_of_groups_says_when_messages_will_be_lost(sites):
    site = sites()
    losses = (None, Unknown("broker-b does not tell"), 0.0, 3_600.0, 200_000.0)
    groups = [msgspec.structs.replace(group(at), loss_s=it) for at, it in enumerate(losses)]
    site.snapshot = snapshot(site.clock, groups=groups)
    page = await site.web.get("/groups?sort=loss")
    cells = re.findall(r'<td class="([^"]*)" data-title="Time to loss">(.*?)</td>', page.text)
    assert [(kinds.split()[1:], text) for kinds, text in cells] == [
        (["bad"], "0 s"),
        (["bad"], "1 h"),
        ([], "2 d 7 h"),
        ([], "never"),
        ([], '<span class="unknown" title="broker-b does not tell">unknown</span>'),
    ]
    data = (await site.web.get("/groups?sort=loss", headers=JSON)).json()["data"]
    unknown = {"type": "unknown", "reason": "broker-b does not tell"}
    assert {it["name"]: it["loss_s"] for it in data} == {
        "group-0000": None, "group-0001": unknown, "group-0002": 0.0, "group-0003": 3_600.0,
        "group-0004": 200_000.0,
    }  # fmt: skip


async def test_a_group_that_reads_nothing_is_told_from_one_that_is_slow(sites):
    site = sites()
    pauses = (None, Since(1_800_000_000_000), Since(1_800_000_000_000, is_bound=True))
    groups = [msgspec.structs.replace(group(at), still_since=it) for at, it in enumerate(pauses)]
    site.snapshot = snapshot(site.clock, groups=groups)
    page = await site.web.get("/groups?sort=name")
    found = re.findall(r'data-title="Not reading since">(.*?)</td>', page.text)
    assert [Markup(it).striptags() for it in found] == [
        "none", "2027-01-15 08:00:00 UTC", "2027-01-15 08:00:00 UTC or earlier",
    ]  # fmt: skip
    data = (await site.web.get("/groups?sort=name", headers=JSON)).json()["data"]
    assert [it["still_since"] and it["still_since"]["is_bound"] for it in data] == [
        None, False, True,
    ]  # fmt: skip


async def test_unknown_empty_and_zero_look_different(sites):
    site = sites()
    none = group(0)
    unknown = Unknown("broker-b hangs")
    site.snapshot = snapshot(
        site.clock,
        groups=[none, Group(*(*list_of(none)[:9], unknown, unknown, *list_of(none)[11:]))],
    )
    page = await site.web.get("/groups")
    assert 'title="broker-b hangs">unknown</span>' in page.text
    assert ">0</td>" in page.text
    silence = Unknown("broker-b hangs", is_silence=True)
    site.snapshot = snapshot(
        site.clock,
        groups=[msgspec.structs.replace(none, lag=silence)],
        incomplete={"broker-b": "about offsets: broker-b hangs"},
    )
    page = await site.web.get("/groups")
    assert 'title="broker-b hangs">no answer</span>' in page.text
    assert "lacks the part of those that did not answer" in page.text
    assert "<li>broker-b: about offsets: broker-b hangs</li>" in page.text
    site.snapshot = snapshot(site.clock, groups=[])
    assert "There is no consumer group yet" in (await site.web.get("/groups")).text
    site.snapshot = snapshot(site.clock)
    assert "the groups are unknown: not asked" in (await site.web.get("/groups")).text


def list_of(struct):
    return [getattr(struct, name) for name in struct.__struct_fields__]


async def test_home_leads_to_what_each_finding_is_about(large):
    page = await large.web.get("/", headers={**ADMIN, "accept": "text/html"})
    links = re.findall(r'<h2>.*?<a href="([^"]*)">(.*?)</a>', page.text)
    assert links
    for link, text in links:
        (name,) = re.findall(r"(?:group|topic)-\d{4}", link)
        assert name in text
