# SPDX-License-Identifier: Apache-2.0
"""The broker's periodic work. Each step is a plain function, so that tests can call it directly."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from cometmq.broker.acl.keeper import POLL_INTERVAL_MS
from cometmq.broker.broker import Broker
from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.copies.keys import POLL_INTERVAL_MS as KEYS_INTERVAL_MS
from cometmq.broker.filters.subscriptions import SAVE_INTERVAL_MS as FILTERS_INTERVAL_MS
from cometmq.broker.handlers.clients import expire_clients
from cometmq.broker.handlers.transactions import forget_ended
from cometmq.broker.hold import EXPIRE_INTERVAL_MS, SWEEP_INTERVAL_MS
from cometmq.broker.statistics.lag_times import STEP_INTERVAL_MS as LAG_INTERVAL_MS
from cometmq.broker.statistics.latencies import ROTATE_INTERVAL_MS
from cometmq.broker.statistics.rates import HISTORY_INTERVAL_MS, SAMPLE_INTERVAL_MS
from cometmq.broker.statistics.sampler import STEP_INTERVAL_MS as STATISTICS_INTERVAL_MS
from cometmq.broker.storing.disk_figures import WATCH_INTERVAL_MS
from cometmq.broker.tables.journal import RETRY_INTERVAL_MS as JOURNAL_RETRY_INTERVAL_MS
from cometmq.broker.tables.journal import SYNC_INTERVAL_MS
from cometmq.broker.tables.offsets import Offsets
from cometmq.remoting.transport.tasks import describe, sleep_on_grid
from cometmq.runtime.tasks import Sleep, Step
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup
from cometmq.store.settings import FlushDiskType

CLIENT_SCAN_INTERVAL_MS: Final = 10_000
FORGET_INTERVAL_MS: Final = 10_000
RETRY_SAVE_INTERVAL_MS: Final = 5_000


class BackgroundStep(NamedTuple):
    name: str
    interval_ms: int | Callable[[], int]
    run: Step
    sleep: Sleep = sleep_on_grid


def background_steps(broker: Broker) -> Iterator[BackgroundStep]:

    def save_offsets() -> None:
        broker.tables.saver.request_if_dirty(broker.tables.offsets)

    def save_filters() -> None:
        broker.tables.filters.clean()
        broker.tables.saver.request_if_dirty(broker.tables.filters)

    now_ms = broker.clock.now_ms
    offsets_ms = broker.settings.flush_consumer_offset_interval
    yield BackgroundStep("store", broker.driver.tick_interval_ms, broker.driver.tick)
    yield BackgroundStep(
        "delay",
        broker.deferred.delays.step_interval_ms,
        lambda: deliver_delayed(broker),
        broker.deferred.alarm.sleep,
    )
    yield BackgroundStep("hold.expire", EXPIRE_INTERVAL_MS, lambda: expire_pulls(broker))
    yield BackgroundStep("hold.sweep", SWEEP_INTERVAL_MS, lambda: sweep_pulls(broker))
    yield BackgroundStep("offsets", offsets_ms, save_offsets)
    yield BackgroundStep("filters", FILTERS_INTERVAL_MS, save_filters)
    yield BackgroundStep("tables", RETRY_SAVE_INTERVAL_MS, broker.tables.saver.retry)
    yield BackgroundStep("stats", SAMPLE_INTERVAL_MS, lambda: sample_totals(broker))
    yield BackgroundStep("statistics", STATISTICS_INTERVAL_MS, lambda: sample_sources(broker))
    yield BackgroundStep("put_times", ROTATE_INTERVAL_MS, broker.driver.sends.put_times.rotate)
    yield BackgroundStep(
        "history", HISTORY_INTERVAL_MS, lambda: broker.measured.history.sample(now_ms())
    )
    yield BackgroundStep("clients", CLIENT_SCAN_INTERVAL_MS, lambda: expire_clients(broker))
    yield BackgroundStep("slow", CHECK_INTERVAL_MS, lambda: disable_slow_groups(broker))
    yield BackgroundStep("transactions", FORGET_INTERVAL_MS, lambda: forget_ended(broker))
    yield BackgroundStep("lag_times", LAG_INTERVAL_MS, lambda: measure_lags(broker))
    yield BackgroundStep("disk_figures", WATCH_INTERVAL_MS, lambda: watch_disk(broker))
    if broker.tables.journal is not None:
        yield BackgroundStep("journal", JOURNAL_RETRY_INTERVAL_MS, broker.tables.journal.retry)
        if broker.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            yield BackgroundStep("journal.sync", SYNC_INTERVAL_MS, broker.tables.journal.files.sync)
    yield BackgroundStep("member_keys", KEYS_INTERVAL_MS, broker.admission.member_keys.poll)
    if broker.admission.acl is not None:
        yield BackgroundStep("acl", POLL_INTERVAL_MS, broker.admission.acl.poll)


def sample_totals(broker: Broker) -> None:
    broker.measured.rates.sample(
        broker.clock.monotonic_ms(), put_count=broker.store.counters.put_count
    )


def sample_sources(broker: Broker) -> None:
    broker.measured.sampler.step(broker.clock.monotonic_ms())


def measure_lags(broker: Broker) -> None:
    if broker.measured.is_observed:
        broker.measured.lag_times.step(
            broker.tables.offsets,
            broker.tables.groups.table,
            broker.store.reader,
            broker.driver.reads.look_up,
        )


def watch_disk(broker: Broker) -> None:
    if broker.measured.is_observed:
        broker.measured.disk_watch.step(broker.settings, broker.store, broker.driver)


def deliver_delayed(broker: Broker) -> None:
    """Deliver messages that are due; a slave receives them in its master's log instead."""
    if broker.role.is_master and not broker.role.is_diverting:
        broker.deferred.delays.step(broker.clock.now_ms())


def expire_pulls(broker: Broker) -> None:
    broker.pending.hold.expire(broker.clock.monotonic_ms())
    broker.driver.turn.wake()


def sweep_pulls(broker: Broker) -> None:
    """Answer held pulls whose queue has grown even though no new message passed their filter."""
    broker.pending.hold.sweep(broker.clock.monotonic_ms(), broker.store.reader.max_offset)
    broker.driver.turn.wake()


def disable_slow_groups(broker: Broker) -> None:
    """Disable the groups that `slow_groups` finds, if the settings enable this."""
    settings = broker.settings
    if not settings.disable_consume_if_consumer_read_slowly:
        return

    def disable(names: list[str]) -> None:
        for name in names:
            if broker.tables.groups.disable(name):
                broker.log.warning("group.disabled", group=name, reason="reads too far behind")

    def failed(error: Exception) -> None:
        broker.log.warning("groups.unmeasured", error=describe(error))

    lookup = slow_groups(
        broker.clients.consumers.groups(),
        broker.tables.offsets,
        broker.store.reader,
        log_end=broker.store.commit_log.confirm_offset,
        behind_bytes_max=settings.consumer_fallbehind_threshold,
    )
    broker.driver.reads.look_up(lookup, disable, failed)


CHECK_INTERVAL_MS: Final = 180_000


def slow_groups(
    groups: Iterable[ConsumerGroup],
    offsets: Offsets,
    store: Reader,
    *,
    log_end: int,
    behind_bytes_max: int,
) -> Lookup[list[str]]:
    """Return the groups whose next message in some queue is more than `behind_bytes_max` before the
    end of the log.
    """
    slow = []
    for group in list(groups):
        oldest = yield from _oldest_place(group, offsets, store, log_end=log_end)
        if log_end - oldest > behind_bytes_max:
            slow.append(group.name)
    return slow


def _oldest_place(
    group: ConsumerGroup, offsets: Offsets, store: Reader, *, log_end: int
) -> Lookup[int]:
    """Return the lowest physical offset of a group's next messages; the end of the log if there are
    none.
    """
    oldest = log_end
    for topic in list(group.subscriptions):
        for queue_id, offset in list(offsets.queues(group.name, topic).items()):
            place = yield from store.place(topic, queue_id, offset)
            if place >= 0:
                oldest = min(oldest, place)
    return oldest
