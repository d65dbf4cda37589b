# SPDX-License-Identifier: Apache-2.0
"""Statistics parsed from the answers of brokers."""

import pytest

from cometmq.client import AdminClient
from cometmq.client.admin.figures import (
    BrokerFigures,
    GroupCopies,
    Load,
    SlowRequests,
    Traffic,
    read_figures,
)
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.bodies.stats import BrokerStatsData, StatsItem


def test_texts_become_numbers() -> None:
    figures = read_figures(
        {
            "brokerVersionDesc": "V4_9_4",
            "putTps": "2.5 1.0 0.5",
            "getTransferedTps": "7.0",
            "sendThreadPoolQueueSize": "3",
            "sendThreadPoolQueueHeadWaitTimeMills": "20",
            "pageCacheLockTimeMills": "4",
            "msgPutTotalYesterdayMorning": "10",
            "msgPutTotalTodayMorning": "30",
            "msgPutTotalTodayNow": "35",
            "msgGetTotalYesterdayMorning": "1",
            "msgGetTotalTodayMorning": "2",
            "msgGetTotalTodayNow": "4",
            "bootTimestamp": "1700000000000",
            "earliestMessageTimeStamp": "1600000000000",
            "commitLogDiskRatio": "0.25",
            "writesRefused": "disk-full",
            "replicationRefused": "ahead",
            "accountsBroken": "/etc/cometmq/plain_acl.yml",
            "accountsMisspelt": "/etc/cometmq/acl/shop.yml",
            "commitLogMaxOffset": "1234",
            "sendPath": "native",
            "nativeRequests": "900",
            "slowRequests": "11:empty=60,36:no_native_form=40,x:y=3,7",
            "groupMembers": "0,1,2",
            "groupInSync": "0,2",
            "groupMinInSync": "2",
        }
    )
    assert figures == BrokerFigures(
        version="V4_9_4",
        incoming=Load(2.5, 3, 20),
        outgoing=Load(7.0, 0, 0),
        page_cache_lock_ms=4,
        put_yesterday=20,
        put_today=5,
        got_yesterday=1,
        got_today=2,
        started_ms=1_700_000_000_000,
        earliest_message_ms=1_600_000_000_000,
        commit_log_disk_ratio=0.25,
        writes_refused="disk-full",
        not_following="ahead",
        accounts_broken="/etc/cometmq/plain_acl.yml",
        accounts_misspelt="/etc/cometmq/acl/shop.yml",
        log_max_offset=1234,
        send_path="native",
        native_request_count=900,
        slow_requests=(SlowRequests(11, "empty", 60), SlowRequests(36, "no_native_form", 40)),
        copies=GroupCopies(members=(0, 1, 2), in_sync=(0, 2), min_in_sync=2),
    )
    assert figures.slow_share == 0.1
    assert BrokerFigures().slow_share is None
    assert figures.copies is not None
    assert figures.copies.missing == (1,)


def test_the_rate_of_pulls_has_another_name_in_rocketmq_5() -> None:
    assert read_figures({"getTransferredTps": "7.0 1.0 0.5"}).outgoing.tps == 7.0


def test_missing_figures_stay_missing() -> None:
    assert read_figures({}) == BrokerFigures()
    odd = read_figures(
        {"commitLogDiskRatio": "-1", "earliestMessageTimeStamp": "-1", "putTps": "?"}
    )
    assert odd == BrokerFigures()


def test_a_day_is_counted_by_the_longest_period_that_has_something() -> None:
    item = StatsItem
    stats = BrokerStatsData(item(), item(sum=7), item(sum=3, tps=0.5))
    assert Traffic.of(stats) == Traffic(0.5, 7)
    assert Traffic.of(BrokerStatsData()) == Traffic()
    assert Traffic(1.5, 2) + Traffic(0.5, 3) == Traffic(2.0, 5)


async def test_a_member_that_does_not_tell_its_figures_is_listed(cluster: MemoryCluster) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        (member,) = await admin.members()
    assert (member.broker_name, member.broker_id, member.figures) == ("broker-a", 0, None)
    assert "not supported" in str(member.failure)


def test_a_figure_that_is_no_finite_number_counts_as_missing() -> None:
    facts = dict.fromkeys(("bootTimestamp", "commitLogMaxOffset", "putTps"), "nan")
    assert read_figures(facts | {"earliestMessageTimeStamp": "-inf"}) == BrokerFigures()


@pytest.mark.parametrize("lie", ["inf", "nan", "-inf", "1e300", "9" * 5_000, "\u00b2"])
def test_a_lie_is_no_figure(lie: str) -> None:
    told = ("putTps", "bootTimestamp", "commitLogDiskRatio", "groupMembers", "groupMinInSync")
    figures = read_figures(
        {**dict.fromkeys(told, lie), "slowRequests": f"{lie}:x=1,11:x={lie}", "groupInSync": lie}
    )
    assert figures == BrokerFigures(copies=GroupCopies((), (), 0))
