# SPDX-License-Identifier: Apache-2.0

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.statistics import counters as stats
from cometmq.broker.statistics import sampler as stat_sampler
from cometmq.broker.statistics.counters import BrokerStats, GroupStats, TopicStats, figures_of
from cometmq.broker.statistics.sampler import StatSampler, find_statistic, pull_rate
from cometmq.broker.statistics.windows import DAY, HOUR, MINUTE, Windows
from cometmq.remoting.bodies.stats import BrokerStatsData, StatsItem

SECOND_MS = 1_000


@pytest.fixture
def counters() -> BrokerStats:
    return BrokerStats()


@pytest.fixture
def sampler(counters: BrokerStats) -> StatSampler:
    return StatSampler(counters, now_ms=0)


def data(counters: BrokerStats, name: str, key: str) -> BrokerStatsData | None:
    return find_statistic(counters, name, key, cluster="C")


def minute(counters: BrokerStats, name: str, key: str) -> StatsItem:
    found = data(counters, name, key)
    assert found is not None
    return found.stats_minute


def test_the_first_copy_counts_from_one_interval_before() -> None:
    """As captured from RocketMQ: after six messages in ten seconds the rate is 0.6 per second; the
    figures of the hour and the day are still 0.
    """
    windows = Windows(2)

    windows.add([MINUTE], 10_000, (6, 6))

    assert windows.data(0, 1) == BrokerStatsData(stats_minute=StatsItem(avgpt=1.0, sum=6, tps=0.6))


def test_a_minute_is_six_intervals_long() -> None:
    windows = Windows(1)
    for number in range(1, 21):
        windows.add([MINUTE], number * 10_000, (number * 10,))

    assert windows.item(MINUTE, 0, None) == StatsItem(avgpt=0.0, sum=60, tps=1.0)


def test_an_hour_and_a_day_have_their_own_intervals() -> None:
    windows = Windows(1)
    for number in range(1, 49):
        windows.add([HOUR], number * 600_000, (number * 600,))
        windows.add([DAY], number * 3_600_000, (number * 3_600,))

    assert windows.item(HOUR, 0, None) == StatsItem(sum=3_600, tps=1.0)
    assert windows.item(DAY, 0, None) == StatsItem(sum=86_400, tps=1.0)


def test_puts_count_for_topic_and_broker(counters: BrokerStats, sampler: StatSampler) -> None:
    counters.count_put("T", 1, 100)
    counters.count_put("T", 9, 900)  # a batch

    sampler.step(10_000)

    assert minute(counters, "TOPIC_PUT_NUMS", "T") == StatsItem(avgpt=5.0, sum=10, tps=1.0)
    assert minute(counters, "TOPIC_PUT_SIZE", "T") == StatsItem(avgpt=500.0, sum=1000, tps=100.0)
    assert minute(counters, "BROKER_PUT_NUMS", "C") == StatsItem(sum=10, tps=1.0)


def test_reads_count_for_group_and_broker(counters: BrokerStats, sampler: StatSampler) -> None:
    counters.count_get("T", "G", 4, 400)
    counters.count_get("T", "G", 2, 200)
    counters.count_wait("T", "G", 30)
    counters.group("T", "G").send_back_count += 1

    sampler.step(10_000)

    assert minute(counters, "GROUP_GET_NUMS", "T@G") == StatsItem(avgpt=3.0, sum=6, tps=0.6)
    assert minute(counters, "GROUP_GET_SIZE", "T@G") == StatsItem(avgpt=300.0, sum=600, tps=60.0)
    assert minute(counters, "GROUP_GET_LATENCY", "T@G") == StatsItem(avgpt=15.0, sum=30, tps=3.0)
    assert minute(counters, "SNDBCK_PUT_NUMS", "T@G") == StatsItem(avgpt=1.0, sum=1, tps=0.1)
    assert minute(counters, "BROKER_GET_NUMS", "C") == StatsItem(sum=6, tps=0.6)
    assert pull_rate(counters, "T", "G") == pytest.approx(0.6)
    assert counters.get_time_max_ms == 30


def test_delayed_messages_count_in_their_level_and_when_delivered(
    counters: BrokerStats, sampler: StatSampler
) -> None:
    counters.count_put("SCHEDULE_TOPIC_XXXX", 1, 100)
    counters.count_delayed(2, 1, 100)
    counters.count_delivered("T", 2, 1, 110)

    sampler.step(10_000)

    level = "SCHEDULE_TOPIC_XXXX@2"
    reader = "SCHEDULE_TOPIC_XXXX@2@SCHEDULE_CONSUMER"
    assert minute(counters, "QUEUE_PUT_NUMS", level).sum == 1
    assert minute(counters, "QUEUE_PUT_SIZE", level).sum == 100
    assert minute(counters, "QUEUE_GET_NUMS", reader).sum == 1
    assert minute(counters, "QUEUE_GET_SIZE", reader).sum == 110
    assert minute(counters, "GROUP_GET_NUMS", "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER").sum == 1
    assert minute(counters, "TOPIC_PUT_NUMS", "T").sum == 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NO_SUCH", "T"),
        ("TOPIC_PUT_NUMS", "U"),
        ("GROUP_GET_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@H"),
        ("GROUP_GET_NUMS", "T@G@"),
        ("SNDBCK_PUT_NUMS", "T@G"),  # the group has read messages, but sent none back
        ("BROKER_PUT_NUMS", "other"),
        ("QUEUE_PUT_NUMS", "T@0"),
        ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@x"),
        ("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@" + "9" * 5000),
        ("QUEUE_GET_NUMS", "SCHEDULE_TOPIC_XXXX@2@G"),
        ("", ""),
    ],
)
def test_statistics_that_never_counted_do_not_exist(
    counters: BrokerStats, sampler: StatSampler, name: str, key: str
) -> None:
    counters.count_put("T", 1, 1)
    counters.count_get("T", "G", 1, 1)
    counters.count_delayed(2, 1, 1)
    sampler.step(10_000)

    assert data(counters, name, key) is None


def test_statistics_counted_since_the_last_copy_exist(counters: BrokerStats) -> None:
    counters.count_put("T", 1, 1)

    assert data(counters, "TOPIC_PUT_NUMS", "T") == BrokerStatsData()


def test_rounds_begin_every_ten_seconds(counters: BrokerStats, sampler: StatSampler) -> None:
    counters.count_put("T", 1, 1)
    for at_s in range(1, 10):
        sampler.step(at_s * SECOND_MS)
    assert minute(counters, "TOPIC_PUT_NUMS", "T").sum == 0

    for at_s in range(10, 3_601):
        sampler.step(at_s * SECOND_MS)

    found = data(counters, "TOPIC_PUT_NUMS", "T")
    assert found is not None
    assert found.stats_minute.sum == 0
    assert (found.stats_hour.sum, found.stats_day.sum) == (1, 1)


def test_a_step_copies_a_bounded_number_of_sources(
    counters: BrokerStats, sampler: StatSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stat_sampler, "STEP_COUNT_MAX", 3)
    for number in range(5):
        counters.count_put(f"T{number}", 1, 1)

    sampler.step(10_000)
    copied = [topic.windows is not None for topic in counters.topics.values()]
    assert copied.count(True) == 2  # including the broker's own

    sampler.step(11_000)
    assert all(topic.windows is not None for topic in counters.topics.values())


def test_deleting_topics_and_groups_keeps_the_totals(
    counters: BrokerStats, sampler: StatSampler
) -> None:
    counters.count_put("T", 3, 30)
    counters.count_get("T", "G", 2, 20)
    counters.count_get("U", "G", 2, 20)
    sampler.step(10_000)

    counters.forget_topic("T")
    counters.forget_group("G")

    assert data(counters, "TOPIC_PUT_NUMS", "T") is None
    assert data(counters, "GROUP_GET_NUMS", "T@G") is None
    assert data(counters, "GROUP_GET_NUMS", "U@G") is None
    assert (counters.put_count, counters.put_bytes, counters.get_count) == (3, 30, 4)
    assert pull_rate(counters, "T", "G") == 0.0


def test_the_tables_are_bounded(counters: BrokerStats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "SOURCES_MAX", 2)
    for number in range(4):
        counters.count_put(f"T{number}", 1, 10)
        counters.count_get("T", f"G{number}", 1, 10)

    assert (len(counters.topics), len(counters.groups)) == (2, 2)
    assert (counters.put_count, counters.put_bytes, counters.get_count) == (4, 40, 4)


class EagerCopies:
    """The reference implementation: copies the figures of every source in every round."""

    def __init__(self, counters: BrokerStats) -> None:
        self._counters = counters
        self._windows: dict[int, Windows] = {}

    def round(self, at_ms: int) -> None:
        periods = [MINUTE, *([HOUR] if at_ms % 600_000 == 0 else [])]
        periods += [DAY] if at_ms % 3_600_000 == 0 else []
        sources: list[Any] = [*self._counters.topics.values(), *self._counters.groups.values()]
        for source in sources:
            figures = figures_of(source)
            windows = self._windows.setdefault(id(source), Windows(len(figures)))
            windows.add(periods, at_ms, figures)

    def data(self, source: TopicStats | GroupStats, value_at: int) -> BrokerStatsData:
        windows = self._windows.get(id(source))
        return BrokerStatsData() if windows is None else windows.data(value_at, 0)


COUNTED = st.lists(st.sampled_from(["T", "U", "T@G", "U@H"]), max_size=3)
PAUSES = st.sampled_from([1, 2, 3, 5, 7, 8, 61, 367])  # rounds of ten seconds


@given(st.lists(st.tuples(COUNTED, PAUSES, st.booleans()), max_size=25))
def test_late_copies_equal_those_of_every_round(events: list[tuple[list[str], int, bool]]) -> None:
    counters = BrokerStats()
    sampler, eager, now_ms = StatSampler(counters, now_ms=0), EagerCopies(counters), 0
    for names, pause, is_read in events:
        for name in names:
            topic, _, group = name.partition("@")
            if group:
                counters.count_get(topic, group, 2, 20)
            else:
                counters.count_put(topic, 3, 30)
        for _ in range(pause):
            now_ms += 10_000
            sampler.step(now_ms)
            eager.round(now_ms)
        if is_read:
            for topic, source in counters.topics.items():
                assert data(counters, "TOPIC_PUT_NUMS", topic) == eager.data(source, 1)
            for (topic, group), counted in counters.groups.items():
                wanted = eager.data(counted, 1)
                assert data(counters, "GROUP_GET_NUMS", f"{topic}@{group}") == wanted
                assert pull_rate(counters, topic, group) == wanted.stats_minute.tps


def test_sources_without_traffic_cost_nothing(counters: BrokerStats, sampler: StatSampler) -> None:
    for number in range(300):
        counters.count_put(f"T{number}", 1, 10)
        counters.count_get(f"T{number}", "G", 1, 10)
    for at_s in range(30):
        sampler.step(at_s * SECOND_MS)

    assert list(counters.sources.active.values()) == [counters]
