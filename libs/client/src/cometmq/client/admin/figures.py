# SPDX-License-Identifier: Apache-2.0
"""Statistics of a running broker, parsed from text into numbers."""

from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.remoting.bodies.stats import BrokerStatsData
from cometmq.remoting.integers import whole

NUMBER_MAX: Final = 2.0**63


class Load(msgspec.Struct, frozen=True):
    """The load in one direction: messages/s, queued requests, and the oldest one's wait."""

    tps: float = 0.0
    waiting: int = 0
    wait_ms: int = 0


class Traffic(msgspec.Struct, frozen=True):
    """The rate of an event over the last minute, and its count over the last day."""

    tps: float = 0.0
    count: int = 0

    @classmethod
    def of(cls, stats: BrokerStatsData) -> "Traffic":
        """Build from `stats`; the count covers less than a day if the broker is younger."""
        periods = (stats.stats_day, stats.stats_hour, stats.stats_minute)
        return cls(stats.stats_minute.tps, next((it.sum for it in periods if it.sum), 0))

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.tps + other.tps, self.count + other.count)


class GroupCopies(msgspec.Struct, frozen=True):
    """The copies of a broker group with failover, by broker id, as its master reports them."""

    members: tuple[int, ...]
    in_sync: tuple[int, ...]
    min_in_sync: int
    """The broker group accepts no messages while fewer copies than this are in sync."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The members that are not in sync: down, not started yet, or still catching up."""
        return tuple(member for member in self.members if member not in self.in_sync)


class SlowRequests(msgspec.Struct, frozen=True):
    """Requests of one code that did not take the native path, for one reason."""

    code: int
    reason: str
    count: int


class OwnFigures(msgspec.Struct, frozen=True):
    """Values that RocketMQ's brokers do not report: problems, copies and the native path."""

    writes_refused: str = ""
    """Why the store refuses messages, such as `disk-full`; empty if it accepts them."""
    not_following: str = ""
    """Why a slave cannot follow its master, such as `ahead`."""
    slave_missing: str = ""
    """Why sends to a SYNC_MASTER have no slave to wait for, such as `not connected`."""
    accounts_broken: str = ""
    """The account file that the broker cannot use, and that would keep it from starting again."""
    accounts_misspelt: str = ""
    """The account files with keys or words that mean nothing, separated by commas."""
    messages_damaged: str = ""
    """How many messages in damaged bytes of the log are not delivered."""
    routes_missing: str = ""
    """The name servers that do not list the broker, and why."""
    is_elector_missing: bool = False
    """Whether the broker is a member of a broker group and no elector is connected."""
    send_path: str = ""
    """How plain sends are handled: `native`, or `python` and why."""
    native_request_count: int = 0
    """The requests that took the native path."""
    slow_requests: tuple[SlowRequests, ...] = ()
    """The requests that did not take the native path although the broker has one."""
    copies: GroupCopies | None = None
    """The copies of the broker group whose master this broker is."""
    member_id: int | None = None
    """The brokerId of a member of a broker group; name servers list it under another id."""

    @property
    def slow_share(self) -> float | None:
        """The share of requests that did not take the native path; None without such a path."""
        slow = sum(row.count for row in self.slow_requests)
        asked = self.native_request_count + slow
        return slow / asked if asked else None


class BrokerFigures(OwnFigures, frozen=True):
    """Statistics of one broker; what it does not report is 0, or None where 0 has a meaning."""

    version: str = ""
    incoming: Load = Load()
    outgoing: Load = Load()
    page_cache_lock_ms: int = 0
    put_yesterday: int = 0
    put_today: int = 0
    got_yesterday: int = 0
    got_today: int = 0
    started_ms: int = 0
    earliest_message_ms: int | None = None
    commit_log_disk_ratio: float | None = None
    """Used fraction of the commit log's disk, 0 to 1."""
    log_max_offset: int = 0
    """End offset of the commit log in bytes; a slave's lag is its distance to the master's."""


def read_figures(facts: Mapping[str, str]) -> BrokerFigures:
    """Parse the answer to `runtime_info`."""
    earliest_ms = int(_number(facts, "earliestMessageTimeStamp", -1))
    ratio = _number(facts, "commitLogDiskRatio", -1)
    pull_rate = "getTransferedTps"
    if pull_rate not in facts:
        pull_rate = "getTransferredTps"  # of RocketMQ 5
    put = _totals(facts, "msgPutTotal")
    got = _totals(facts, "msgGetTotal")
    return BrokerFigures(
        version=facts.get("brokerVersionDesc", ""),
        incoming=_load(facts, "putTps", "send"),
        outgoing=_load(facts, pull_rate, "pull"),
        page_cache_lock_ms=int(_number(facts, "pageCacheLockTimeMills")),
        put_yesterday=put[1] - put[0],
        put_today=put[2] - put[1],
        got_yesterday=got[1] - got[0],
        got_today=got[2] - got[1],
        started_ms=int(_number(facts, "bootTimestamp")),
        earliest_message_ms=None if earliest_ms < 0 else earliest_ms,
        commit_log_disk_ratio=None if ratio < 0 else ratio,
        writes_refused=facts.get("writesRefused", ""),
        not_following=facts.get("replicationRefused", ""),
        slave_missing=facts.get("slaveMissing", ""),
        accounts_broken=facts.get("accountsBroken", ""),
        messages_damaged=facts.get("messagesDamaged", ""),
        routes_missing=facts.get("routesMissing", ""),
        is_elector_missing="electorMissing" in facts,
        accounts_misspelt=facts.get("accountsMisspelt", ""),
        log_max_offset=int(_number(facts, "commitLogMaxOffset")),
        send_path=facts.get("sendPath", ""),
        native_request_count=int(_number(facts, "nativeRequests")),
        slow_requests=_slow_requests(facts.get("slowRequests", "")),
        copies=_copies(facts),
        member_id=whole(facts.get("groupBrokerId", "")),
    )


def _slow_requests(text: str) -> tuple[SlowRequests, ...]:
    """Parse `CODE:REASON=COUNT`, separated by commas."""
    found = []
    for word in text.split(","):
        kind, _, count = word.partition("=")
        code, _, reason = kind.partition(":")
        numbers = whole(code), whole(count)
        if numbers[0] is not None and numbers[1] is not None:
            found.append(SlowRequests(numbers[0], reason, numbers[1]))
    return tuple(found)


def _copies(facts: Mapping[str, str]) -> GroupCopies | None:
    if "groupInSync" not in facts:
        return None
    return GroupCopies(
        members=_ids(facts, "groupMembers"),
        in_sync=_ids(facts, "groupInSync"),
        min_in_sync=int(_number(facts, "groupMinInSync")),
    )


def _ids(facts: Mapping[str, str], name: str) -> tuple[int, ...]:
    numbers = map(whole, facts.get(name, "").split(","))
    return tuple(number for number in numbers if number is not None)


def _load(facts: Mapping[str, str], rate: str, pool: str) -> Load:
    return Load(
        tps=_number(facts, rate),
        waiting=int(_number(facts, f"{pool}ThreadPoolQueueSize")),
        wait_ms=int(_number(facts, f"{pool}ThreadPoolQueueHeadWaitTimeMills")),
    )


def _totals(facts: Mapping[str, str], name: str) -> tuple[int, int, int]:
    """Return a count as of yesterday morning, this morning, and now."""
    yesterday, today, now = (
        int(_number(facts, f"{name}{moment}"))
        for moment in ("YesterdayMorning", "TodayMorning", "TodayNow")
    )
    return yesterday, today, now


def _number(facts: Mapping[str, str], name: str, default: float = 0.0) -> float:
    """Return the first number of a value: of a rate, the one over the shortest period.

    Return `default` for a number beyond a Java long: sums of such numbers could be infinite.
    """
    words = facts.get(name, "").split()
    try:
        found = float(words[0]) if words else default
    except ValueError:
        return default
    return found if abs(found) < NUMBER_MAX else default  # not for NaN, either
