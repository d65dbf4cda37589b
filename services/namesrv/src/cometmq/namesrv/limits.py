# SPDX-License-Identifier: Apache-2.0
"""The limits of a name server's tables, which brokers and tools fill, as one list: `LIMITS`.

The reference page (docs/reference/limits.md), the metrics and a test that fills every table are
derived from it. The transport bounds connections and unread bytes (`settings.py`).

Compatibility: RocketMQ has none of these limits; no cluster in practice reaches them.
"""

from typing import Final

from cometmq.remoting.codes import ResponseCode
from cometmq.runtime.limits import Limit, Scope

REFUSED: Final = "The broker is refused, reports it and is not ready."
REGISTRATION_WAIT_S_MAX: Final = 30.0
"""Brokers repeat a registration after this time."""
_CODE: Final = ResponseCode.SYSTEM_ERROR

BROKERS: Final = Limit(
    "brokers",
    "Registered brokers",
    Scope.TOTAL,
    REFUSED,
    "brokersMax",
    lambda s: s.brokers_max,
    answer=_CODE,
)
CONNECTION_BROKERS: Final = Limit(
    "connection_brokers", "Brokers registered by one connection", Scope.CONNECTION, REFUSED,
    "connectionBrokersMax", lambda s: s.connection_brokers_max, answer=_CODE,
)  # fmt: skip
BROKER_TOPICS: Final = Limit(
    "broker_topics", "Topics of one broker group", Scope.BROKER, REFUSED,
    "topicsPerBrokerMax", lambda s: s.topics_per_broker_max,
    answer=_CODE,
)  # fmt: skip
ROUTE_ENTRIES: Final = Limit(
    "route_entries", "Topics of all broker groups, counted per group", Scope.TOTAL, REFUSED,
    "routeEntriesMax", lambda s: s.route_entries_max, answer=_CODE,
)  # fmt: skip
REGISTRATION_BYTES: Final = Limit(
    "registration_bytes", "Bytes of large registrations that are being read", Scope.TOTAL,
    f"{REFUSED} So is one that waits for {REGISTRATION_WAIT_S_MAX:.0f} s.",
    fixed=128 << 20, answer=ResponseCode.SYSTEM_BUSY,
)  # fmt: skip
FILTER_SERVERS: Final = Limit(
    "filter_servers", "Filter servers of one broker", Scope.BROKER, REFUSED, fixed=64, answer=_CODE
)
ALL_FILTER_SERVERS: Final = Limit(
    "all_filter_servers", "Filter servers of all brokers; as many as brokers, but at least 64",
    Scope.TOTAL, REFUSED, "brokersMax", lambda s: max(FILTER_SERVERS.fixed, s.brokers_max),
    answer=_CODE,
)  # fmt: skip
NAME_CHARS: Final = Limit(
    "name_chars", "Characters of a name or address in a registration", Scope.REQUEST, REFUSED,
    fixed=255, answer=_CODE,
)  # fmt: skip
KV_ENTRIES: Final = Limit(
    "kv_entries", "Key-values", Scope.TOTAL, "The request is refused.",
    "kvEntriesMax", lambda s: s.kv_entries_max,
    answer=_CODE,
)  # fmt: skip
KV_BYTES: Final = Limit(
    "kv_bytes", "Bytes of all key-values as JSON, with their namespaces and keys", Scope.TOTAL,
    "The request is refused.", "kvBytesMax", lambda s: s.kv_bytes_max, answer=_CODE,
)  # fmt: skip

LIMITS: Final[tuple[Limit, ...]] = (
    BROKERS,
    CONNECTION_BROKERS,
    BROKER_TOPICS,
    ROUTE_ENTRIES,
    REGISTRATION_BYTES,
    FILTER_SERVERS,
    ALL_FILTER_SERVERS,
    NAME_CHARS,
    KV_ENTRIES,
    KV_BYTES,
)
