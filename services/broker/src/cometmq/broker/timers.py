# SPDX-License-Identifier: Apache-2.0
"""The broker's periodic work. Each step is a plain function, so that tests can call it directly."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from cometmq.broker.broker import Broker
from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.handlers.clients import expire_clients
from cometmq.broker.handlers.transactions import forget_ended
from cometmq.broker.tables.offsets import Offsets
from cometmq.remoting.transport.tasks import describe, sleep_on_grid
from cometmq.runtime.tasks import Sleep, Step
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup
from cometmq.store.settings import FlushDiskType

KEYS_INTERVAL_MS: Final = 1_000


class BackgroundStep(NamedTuple):
    name: str
    interval_ms: int | Callable[[], int]
    run: Step
    sleep: Sleep = sleep_on_grid


def background_steps(broker: Broker) -> Iterator[BackgroundStep]:
    def save_offsets() -> None:
        tables.saver.request_if_dirty(tables.offsets)

    def save_filters() -> None:
        tables.filters.clean()
        tables.saver.request_if_dirty(tables.filters)

    tables, measured, driver = broker.tables, broker.measured, broker.driver
    delays, alarm = broker.deferred.delays, broker.deferred.alarm
    now_ms, monotonic_ms = broker.clock.now_ms, broker.clock.monotonic_ms
    step = BackgroundStep
    yield step("store", driver.tick_interval_ms, driver.tick)
    yield step("delay", delays.step_interval_ms, partial(deliver_delayed, broker), alarm.sleep)
    yield step("hold.expire", 1_000, partial(expire_pulls, broker))
    yield step("hold.sweep", 5_000, partial(sweep_pulls, broker))
    yield step("offsets", broker.settings.flush_consumer_offset_interval, save_offsets)
    yield step("filters", 10_000, save_filters)
    yield step("tables", 5_000, tables.saver.retry)
    yield step("stats", 1_000, partial(sample_totals, broker))
    yield step("statistics", 1_000, lambda: measured.sampler.step(monotonic_ms()))
    yield step("put_times", 60_000, driver.sends.put_times.rotate)
    yield step("history", 10_000, lambda: measured.history.sample(now_ms()))
    yield step("clients", 10_000, partial(expire_clients, broker))
    yield step("slow", 180_000, partial(disable_slow_groups, broker))
    yield step("transactions", 10_000, partial(forget_ended, broker))
    yield step("lag_times", 1_000, partial(measure_lags, broker))
    yield step("disk_figures", 10_000, partial(watch_disk, broker))
    if tables.journal is not None:
        yield step("journal", 1_000, tables.journal.retry)
        if broker.settings.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            yield step("journal.sync", 500, tables.journal.files.sync)
    yield step("member_keys", KEYS_INTERVAL_MS, broker.admission.member_keys.poll)
    if broker.admission.acl is not None:
        yield step("acl", 1_000, broker.admission.acl.poll)


def sample_totals(broker: Broker) -> None:
    broker.measured.rates.sample(
        broker.clock.monotonic_ms(), put_count=broker.store.counters.put_count
    )


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


def slow_groups(
    groups: Iterable[ConsumerGroup],
    offsets: Offsets,
    store: Reader,
    *,
    log_end: int,
    behind_bytes_max: int,
) -> Lookup[list[str]]:
    """Return the groups of which a next message is `behind_bytes_max` before the log's end."""
    slow = []
    for group in list(groups):
        oldest = yield from _oldest_place(group, offsets, store, log_end=log_end)
        if log_end - oldest > behind_bytes_max:
            slow.append(group.name)
    return slow


def _oldest_place(
    group: ConsumerGroup, offsets: Offsets, store: Reader, *, log_end: int
) -> Lookup[int]:
    """Return the lowest physical offset of a group's next messages, or the log's end."""
    oldest = log_end
    for topic in list(group.subscriptions):
        for queue_id, offset in list(offsets.queues(group.name, topic).items()):
            place = yield from store.place(topic, queue_id, offset)
            if place >= 0:
                oldest = min(oldest, place)
    return oldest
