# SPDX-License-Identifier: Apache-2.0
"""Counters of a server or client: plain integers, copied at each request."""

import msgspec


class TransportStats(msgspec.Struct):
    """Counters since the start, and four gauges at the end."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    """Over the bound of connections, or TLS where it is not served."""
    requests: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    requests_refused: int = 0
    """Answered SYSTEM_BUSY: over a bound of requests in flight."""
    handler_failures: int = 0
    """Answered SYSTEM_ERROR because a handler raised something unexpected."""
    protocol_errors: int = 0
    """Connections closed because the peer broke the protocol."""
    idle_closed: int = 0
    stalled_closed: int = 0
    """Connections closed because their reader had stopped."""
    overflow_closed: int = 0
    """Connections closed because their unsent output was over a bound."""
    budget_paused: int = 0
    """Connections paused because all unsent output was over its budget."""
    budget_closed: int = 0
    """Connections closed because they were paused so and did not drain."""
    connections: int = 0
    in_flight: int = 0
    unsent_bytes: int = 0
    buffered_bytes: int = 0
