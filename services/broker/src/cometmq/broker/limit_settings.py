# SPDX-License-Identifier: Apache-2.0
"""Bounds on the broker resources that peers may use; keys that RocketMQ lacks are CometMQ's own."""

from typing import Annotated

from msgspec import Meta

from cometmq.broker.group_settings import GroupSettings


class LimitSettings(GroupSettings, frozen=True, kw_only=True, rename="camel"):
    """Limits on connections, unanswered requests, and unread answer bytes."""

    connections_max: Annotated[
        int, Meta(ge=1, description="Maximum number of open connections.")
    ] = 20_000
    connection_in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Maximum number of unanswered requests per connection; further requests are "
                "refused with SYSTEM_BUSY."
            ),
        ),
    ] = 16_384
    in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Maximum number of unanswered requests across all connections; further requests"
                " are refused with SYSTEM_BUSY."
            ),
        ),
    ] = 200_000
    read_wait_mills: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "How long a request may wait for reads of messages or of the index, in ms; then it"
                " is refused with SYSTEM_BUSY. Connections take turns."
            ),
        ),
    ] = 3_000
    write_buffer_high_bytes: Annotated[
        int,
        Meta(ge=1024, description="Number of unread answer bytes at which a connection is paused."),
    ] = 4 * 1024**2
    write_buffer_hard_bytes: Annotated[
        int,
        Meta(ge=1024, description="Number of unread answer bytes at which a connection is closed."),
    ] = 64 * 1024**2
    write_buffer_total_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description=(
                "Limit on the memory for unread answers across all connections. Near it, requests"
                " with large answers wait, and the connections with the most unread bytes are"
                " paused, and closed if they do not drain."
            ),
        ),
    ] = 128 * 1024**2
    server_channel_max_idle_time_seconds: Annotated[
        int,
        Meta(ge=1, description="How long a connection may be silent before it is closed, in s."),
    ] = 120
