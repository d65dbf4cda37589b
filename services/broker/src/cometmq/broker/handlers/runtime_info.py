# SPDX-License-Identifier: Apache-2.0
"""The figures in GET_BROKER_RUNTIME_INFO (28), all as strings.

Compatibility: all keys except the constants below are RocketMQ's, because tools and exporters look
them up by name. Figures for parts that only RocketMQ has (thread pools, transient
buffers) are constants that mean "idle". A rate is three numbers: the averages over 10 s, one minute
and ten minutes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.copies.members import parse_members
from cometmq.broker.faults import elector_gap
from cometmq.broker.statistics.rates import WINDOWS_S
from cometmq.broker.storing.disk_figures import DiskFigures
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.remoting.versions import CURRENT_VERSION
from cometmq.runtime.process.memory import used_memory
from cometmq.runtime.version import VERSION
from cometmq.store.settings import BrokerRole

VERSION_DESC: Final = "V4_9_4"  # the name of CURRENT_VERSION
WITHOUT_MEANING: Final = {  # parts that only RocketMQ has
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "2147483647",
}
OWN_KEYS: Final = {
    "writesRefused": "why the store refuses messages, only while it does",
    "replicationRefused": "why a slave cannot follow its master, only while it cannot",
    "slaveMissing": "why a SYNC_MASTER has no slave for which sends wait, only while it has none",
    "routesMissing": "the name servers that do not list the broker, only while there are some",
    "electorMissing": "set only while no elector is connected to this member of a broker group",
    "messagesDamaged": "how many messages are not delivered because bytes of the log are damaged",
    "accountsBroken": "the path of a changed account file that cannot be used",
    "accountsMisspelt": "the account files with misspelt keys or words",
    "cometmqVersion": "the version of the release, beside that of RocketMQ's protocol",
    "sendPath": "`native`, or `python` with the reason",
    "nativeRequests": "only with a native path: the requests that took it since the start",
    "slowRequests": "and those that did not, as `CODE:REASON=COUNT`",
    "certificates": "only with TLS files: when the first certificate in each expires, as"
    " `SETTING=MS` in milliseconds since 1970, separated by commas",
    "memory": "the memory of the process as `PART=BYTES`, separated by commas: `resident` in RAM,"
    " of which `program` (its files), `pullCache` (records cached for pulls) and `unread` (answers"
    " that peers have not read) are parts; the largest so far (`peak`), and allowed (`limit`)",
    "groupMembers": "only while the broker leads a broker group",
    "groupInSync": "only while the broker leads a broker group",
    "groupMinInSync": "only while the broker leads a broker group",
    "groupBrokerId": "the id in the broker group, which is not the id at the name servers",
    "groupEpoch": "the epoch of the role in a broker group, if it has one",
    "brokerActive": "a key of RocketMQ 5: whether the broker is no slave",
    "getTransferredTps": "a key of RocketMQ 5: the rate that 4.9.4 calls `getTransferedTps`",
}
"""All keys that RocketMQ 4.9.4 does not have."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def runtime_table(broker: Broker, disk: DiskFigures) -> dict[str, str]:
    return {
        **_identity(broker),
        **_paths(broker),
        **_messages(broker),
        **_rates(broker),
        **_store(broker),
        **_disk(disk),
        **_queues(broker),
        **_delays(broker),
        **_times(broker),
        **_memory(broker),
        **WITHOUT_MEANING,
    }


def _identity(broker: Broker) -> dict[str, str]:
    elapsed_ms = broker.clock.monotonic_ms() - broker.process.started_monotonic_ms
    return {
        "brokerVersionDesc": VERSION_DESC,
        "brokerVersion": str(CURRENT_VERSION),
        "cometmqVersion": VERSION,
        "sendPath": broker.process.send_path,
        "bootTimestamp": str(broker.process.started_ms),
        "runtime": duration_text(elapsed_ms),
        "brokerActive": str(broker.role.is_master).lower(),
        "startAcceptSendRequestTimeStamp": str(
            broker.settings.start_accept_send_request_time_stamp
        ),
    }


def _memory(broker: Broker) -> dict[str, str]:
    used = used_memory()
    if used is None:
        return {}
    parts = {
        "resident": used.resident,
        "program": used.files,
        "pullCache": 0 if broker.lane is None else broker.lane.cached_bytes,
        "unread": broker.process.unread_bytes(),
        "peak": used.peak,
        "limit": broker.process.memory_bytes,
    }
    return {"memory": ",".join(f"{name}={size}" for name, size in parts.items())}


def _paths(broker: Broker) -> dict[str, str]:
    lane = broker.lane
    if lane is None:
        return {}
    native = lane.request_count + lane.pull_count
    return {"nativeRequests": str(native), "slowRequests": broker.measured.detours.text}


def _messages(broker: Broker) -> dict[str, str]:
    stats, history, store = broker.stats, broker.measured.history, broker.store.stats()
    average = store.put_bytes / store.put_count if store.put_count else 0.0
    return {
        "msgPutTotalYesterdayMorning": str(history.yesterday_morning.put_count),
        "msgPutTotalTodayMorning": str(history.this_morning.put_count),
        "msgPutTotalTodayNow": str(store.put_count),
        "msgGetTotalYesterdayMorning": str(history.yesterday_morning.get_count),
        "msgGetTotalTodayMorning": str(history.this_morning.get_count),
        "msgGetTotalTodayNow": str(stats.get_count),
        "putMessageTimesTotal": str(store.put_count),
        "putMessageFailedTimes": str(stats.put_failed_count),
        "putMessageSizeTotal": str(store.put_bytes),
        "putMessageAverageSize": str(average),
    }


def _rates(broker: Broker) -> dict[str, str]:
    measured = broker.measured.rates
    rates = {
        name: [measured.rate(field, window_s) for window_s in WINDOWS_S]
        for name, field in (
            ("putTps", "put_count"),
            ("getTransferedTps", "get_count"),
            ("getFoundTps", "found_count"),
            ("getMissTps", "miss_count"),
        )
    }
    pairs = zip(rates["getFoundTps"], rates["getMissTps"], strict=True)
    rates["getTransferredTps"] = rates["getTransferedTps"]
    rates["getTotalTps"] = [found + missed for found, missed in pairs]
    return {name: " ".join(map(str, values)) for name, values in rates.items()}


def _store(broker: Broker) -> dict[str, str]:
    stats = broker.store.stats()
    refused = {} if stats.is_writable else {"writesRefused": ",".join(stats.refusals)}
    if stats.damaged_bytes:
        refused["messagesDamaged"] = (
            f"{stats.damaged_message_count}, in {stats.damaged_bytes} bytes of the log:"
            f" {stats.damaged_messages}; others in the same blocks that it delivers:"
            f" {stats.spared_message_count}"
        )
    unfit = broker.replication.following.unfit
    if broker.role.is_slave and unfit is not None:
        refused["replicationRefused"] = unfit.value
    if reason := _missing_slave(broker, stats.max_offset):
        refused["slaveMissing"] = reason
    registration = broker.registration
    if routes := registration.route_fault or registration.route_gap:
        refused["routesMissing"] = routes
    if elector_gap(broker):
        refused["electorMissing"] = "true"
    if broker.admission.acl is not None and broker.admission.acl.broken is not None:
        refused["accountsBroken"] = str(broker.admission.acl.broken)
    if broker.admission.acl is not None and broker.admission.acl.control.accounts.doubts:
        refused["accountsMisspelt"] = ",".join(broker.admission.acl.control.accounts.doubts)
    return {
        **refused,
        **_certificates(broker),
        **_copies(broker),
        "commitLogMinOffset": str(stats.min_offset),
        "commitLogMaxOffset": str(stats.max_offset),
        "dispatchBehindBytes": str(
            max(0, stats.max_offset - broker.store.commit_log.confirm_offset)
        ),
        "remainHowManyDataToFlush": size_text(max(0, stats.max_offset - stats.flushed_offset)),
    }


def _certificates(broker: Broker) -> dict[str, str]:
    found = broker.process.expiries_s()
    text = ",".join(f"{name}={int(expiry_s * 1000)}" for name, expiry_s in found.items())
    return {"certificates": text} if text else {}


def _missing_slave(broker: Broker, end: int) -> str:
    """Return why sends would be answered with SLAVE_NOT_AVAILABLE; empty if they would not."""
    settings, slaves = broker.settings, broker.replication.slaves
    is_alone = settings.broker_role is BrokerRole.SYNC_MASTER and not settings.group_record
    if not is_alone or slaves.may_replicate(end, settings.ha_slave_fallbehind_max):
        return ""
    return "too far behind" if slaves.following() else "not connected"


def _copies(broker: Broker) -> dict[str, str]:
    """Return the figures of a member of a broker group, and the master's of its copies."""
    settings, epoch = broker.settings, broker.role.state.epoch
    if not settings.group_record:
        return {}
    own = {"groupBrokerId": str(settings.broker_id)}
    if epoch:
        own["groupEpoch"] = str(epoch)
    in_sync = broker.replication.copies()
    if in_sync is None:
        return own
    possible = parse_members(settings.group_members)
    members = expected_members(possible, in_sync, broker.replication.copy_count())
    return {
        **own,
        "groupMembers": ",".join(map(str, members)),
        "groupInSync": ",".join(map(str, in_sync)),
        "groupMinInSync": str(settings.min_in_sync),
    }


def expected_members(possible: Iterable[int], in_sync: Sequence[int], copy_count: int) -> list[int]:
    """Estimate which brokers are the members of the group: those in sync and, if these are fewer
    than `copy_count`, further ones with the lowest ids.

    The result is an estimate because `possible` may list more brokers than the group has yet.
    """
    others = [one for one in sorted(possible) if one not in in_sync]
    return sorted([*in_sync, *others[: max(0, copy_count - len(in_sync))]])


def _disk(disk: DiskFigures) -> dict[str, str]:
    ratio = f"{disk.used_percent / 100:.2f}" if disk.total_bytes else "-1"
    return {
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{disk.commit_log}": ratio,
        "consumeQueueDiskRatio": ratio,
        "commitLogDirCapacity": (
            f"Total : {size_text(disk.total_bytes)}, Free : {size_text(disk.free_bytes)}."
        ),
        "earliestMessageTimeStamp": str(disk.earliest_ms),
    }


def _times(broker: Broker) -> dict[str, str]:
    times = broker.driver.sends.put_times
    classes = "".join(f"[{name}]:{count} " for name, count in times.classes().items())
    return {
        "putMessageDistributeTime": classes,
        "putMessageEntireTimeMax": str(times.max_ms),
        "putLatency99": f"{times.percentile(0.99):.2f}",
        "putLatency999": f"{times.percentile(0.999):.2f}",
        "getMessageEntireTimeMax": str(broker.stats.get_time_max_ms),
    }


def _queues(broker: Broker) -> dict[str, str]:
    """Return the amounts of pending work: sends waiting for a sync, and reads from disk."""
    settings, driver = broker.settings, broker.driver
    return {
        "sendThreadPoolQueueSize": str(driver.sends.waiting_count),
        "sendThreadPoolQueueHeadWaitTimeMills": str(driver.sends.head_wait_ms()),
        "pullThreadPoolQueueSize": str(len(driver.reads)),
        "pullThreadPoolQueueHeadWaitTimeMills": "0",
        "queryThreadPoolQueueSize": "0",
        "queryThreadPoolQueueHeadWaitTimeMills": "0",
        "sendThreadPoolQueueCapacity": str(settings.send_thread_pool_queue_capacity),
        "pullThreadPoolQueueCapacity": str(settings.pull_thread_pool_queue_capacity),
        "queryThreadPoolQueueCapacity": str(settings.in_flight_max),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(settings.in_flight_max),
    }


def _delays(broker: Broker) -> dict[str, str]:
    """Return for each level ever used the offset up to which it is delivered, and its end."""
    return {
        f"scheduleMessageOffset_{level}": (
            f"{offset},{broker.store.reader.max_offset(SCHEDULE_TOPIC, level - 1)}"
        )
        for level, offset in broker.deferred.delays.positions.offsets().items()
    }


def duration_text(elapsed_ms: int) -> str:
    """Format a duration as RocketMQ does."""
    seconds = max(0, elapsed_ms) // 1000
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def size_text(size: int) -> str:
    """Format a byte count with a unit: 924 B, 2.3 KiB."""
    value = float(size)
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
