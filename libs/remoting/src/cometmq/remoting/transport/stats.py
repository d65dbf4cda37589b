# SPDX-License-Identifier: Apache-2.0
"""Counters of a server or client: plain integers, copied on request."""

import msgspec


class TransportStats(msgspec.Struct):
    """Counters since startup, followed by five gauges."""

    connections_opened: int = 0
    connections_refused: int = 0
    """Connections closed at once because there were too many."""
    requests: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    requests_refused: int = 0
    """Requests answered with SYSTEM_BUSY because too many were in flight."""
    requests_postponed: int = 0
    """Requests that waited because there was too much unread output."""
    handler_failures: int = 0
    """Requests answered with SYSTEM_ERROR because a handler raised an unexpected exception."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    idle_closed: int = 0
    stalled_closed: int = 0
    """Connections closed because their peer had stopped reading, or stopped within an answer."""
    overflow_closed: int = 0
    """Connections closed because they buffered too much."""
    budget_paused: int = 0
    """Connections paused because the total unsent output exceeded its budget."""
    budget_closed: int = 0
    """Connections closed because they were paused for that reason and did not drain."""
    frames_paused: int = 0
    """How often a connection was not read, because unfinished frames took much memory."""
    frames_closed: int = 0
    """Connections closed because their unfinished frames took too much memory, or too long."""
    connections: int = 0
    frame_bytes: int = 0
    """Long unfinished frames of all connections."""
    in_flight: int = 0
    unsent_bytes: int = 0
    buffered_bytes: int = 0
