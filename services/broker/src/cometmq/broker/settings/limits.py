# SPDX-License-Identifier: Apache-2.0
"""Bounds on the broker resources that peers may use; keys that RocketMQ lacks are CometMQ's own."""

from typing import Annotated

from msgspec import Meta

from cometmq.broker.settings.copies import CopiesSettings
from cometmq.remoting.setting_facts import MUTABLE, Positive

Million = Annotated[int, Meta(ge=1, le=1_000_000), MUTABLE]
Millions = Annotated[int, Meta(ge=1, le=10_000_000), MUTABLE]
Bytes = Annotated[int, Meta(ge=1024), MUTABLE]
Bound = Annotated[Positive, MUTABLE]


class LimitSettings(CopiesSettings, frozen=True, kw_only=True, rename="camel"):
    """Limits on connections, unanswered requests, unread answer bytes, and tables."""

    connections_max: Annotated[
        Positive,
        "Maximum number of open connections; above it, one that was never served is closed.",
    ] = 20_000
    connection_in_flight_max: Annotated[
        Positive,
        "Maximum number of unanswered requests per connection; further requests are refused with "
        "SYSTEM_BUSY.",
    ] = 16_384
    in_flight_max: Annotated[
        Positive,
        "Maximum number of unanswered requests across all connections; further requests are "
        "refused with SYSTEM_BUSY.",
    ] = 200_000
    read_wait_mills: Annotated[
        Positive,
        "How long a request may wait for reads of messages or of the index, or for the turn of a "
        "long answer, in ms; then it is refused with SYSTEM_BUSY. Accounts (or addresses) take "
        "turns, and so do the connections of each.",
    ] = 3_000
    write_buffer_high_bytes: Annotated[
        int, Meta(ge=1024), "Number of unread answer bytes at which a connection is paused."
    ] = 4 * 1024**2
    write_buffer_hard_bytes: Annotated[
        int, Meta(ge=1024), "Number of unread answer bytes at which a connection is closed."
    ] = 64 * 1024**2
    write_buffer_total_bytes: Annotated[
        int,
        Meta(ge=1024),
        "Limit on the memory for unread answers across all connections. Near it, requests with "
        "large answers wait, and the connections with the most unread bytes are paused, and "
        "closed if they do not drain.",
    ] = 128 * 1024**2
    server_channel_max_idle_time_seconds: Annotated[
        Positive, "How long a connection may be silent before it is closed, in s."
    ] = 120

    # Tables: see `limits.py`
    peer_share_max: Annotated[
        int,
        Meta(ge=1, le=100),
        MUTABLE,
        "Percentage of each limit of all peers together that one peer may fill: an account or, "
        "without one, an address.",
    ] = 50
    topics_max: Annotated[
        Million, "Maximum number of topics, with retry and dead-letter topics."
    ] = 100_000
    queues_max: Annotated[
        int,
        Meta(ge=1, le=100_000_000),
        MUTABLE,
        "Maximum number of queues of all topics; each with messages takes 1 KB.",
    ] = 1_000_000
    groups_max: Annotated[Million, "Maximum number of consumer groups."] = 50_000
    offsets_max: Annotated[
        Millions, "Maximum number of committed offsets: about 600 MB with their names."
    ] = 2_000_000
    group_offsets_max: Annotated[Millions, "Maximum number of committed offsets of one group."] = (
        200_000
    )
    unknown_offsets_max: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        MUTABLE,
        "Maximum number of committed offsets of groups, topics and queues that do not exist.",
    ] = 20_000
    recalled_max: Annotated[
        int,
        Meta(ge=0, le=100_000),
        MUTABLE,
        "Maximum number of recalled messages whose delay has not passed.",
    ] = 10_000
    queue_locks_max: Annotated[
        Millions, "Maximum number of queues locked by orderly consumers: about 100 MB."
    ] = 200_000
    lock_items_max: Annotated[
        Bound, "Maximum number of queues in one request that locks or unlocks."
    ] = 20_000
    registrations_max: Annotated[
        Millions,
        "Maximum number of groups of connected producers and consumers, counted per connection: "
        "about 300 MB.",
    ] = 200_000
    connection_registrations_max: Annotated[
        Bound, "Maximum number of groups that one connection registers."
    ] = 25_000
    heartbeat_groups_max: Annotated[Bound, "Maximum number of groups in one heartbeat."] = 1_000
    group_subscriptions_max: Annotated[
        Bound, "Maximum number of topics to which one group subscribes."
    ] = 10_000
    subscription_bytes_max: Annotated[
        Bytes, "Maximum size of the subscriptions and client ids in all registrations."
    ] = 256 * 1024**2
    connection_subscription_bytes_max: Annotated[
        Bytes, "Maximum size of the subscriptions that one connection registers."
    ] = 16 * 1024**2
    filters_max: Annotated[
        Million, "Maximum number of SQL92 filters, with those of groups that left in the last day."
    ] = 10_000
    filter_chars_max: Annotated[Bytes, "Maximum number of characters of all SQL92 filters."] = (
        8 * 1024**2
    )
    batch_messages_max: Annotated[
        Bound, "Maximum number of messages in one batch; maxMessageSize bounds its size."
    ] = 65_536
    journal_bytes_max: Annotated[
        int,
        Meta(ge=48 * 1024**2),
        MUTABLE,
        "Maximum size of the journal of the tables before changes wait until the tables are saved.",
    ] = 128 * 1024**2
