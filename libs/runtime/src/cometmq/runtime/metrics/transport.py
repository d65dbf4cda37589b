# SPDX-License-Identifier: Apache-2.0
"""Metric families of a remoting server; each program adds them with a label that names the
server.
"""

from typing import Final

from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.metrics import Family, counter, gauge, labelled_counter

TRANSPORT_FAMILIES: Final[tuple[Family[TransportStats], ...]] = (
    gauge("cometmq_connections", "Open connections.", lambda s: s.connections),
    gauge("cometmq_requests_in_flight", "Requests not yet answered.", lambda s: s.in_flight),
    gauge(
        "cometmq_connection_unsent_bytes",
        "Unsent output on all connections.",
        lambda s: s.unsent_bytes,
    ),
    gauge(
        "cometmq_connection_buffered_bytes",
        "Unsent output, incomplete frames and waiting requests on all connections.",
        lambda s: s.buffered_bytes,
    ),
    counter("cometmq_requests_total", "Requests received.", lambda s: s.requests),
    counter("cometmq_received_bytes_total", "Bytes received.", lambda s: s.bytes_received),
    counter("cometmq_sent_bytes_total", "Bytes sent.", lambda s: s.bytes_sent),
    counter(
        "cometmq_connections_opened_total", "Connections accepted.", lambda s: s.connections_opened
    ),
    labelled_counter(
        "cometmq_connections_closed_total",
        "Connections closed by the server, by reason.",
        ("reason",),
        lambda s: (
            (("refused",), s.connections_refused),
            (("protocol",), s.protocol_errors),
            (("idle",), s.idle_closed),
            (("stalled",), s.stalled_closed),
            (("overflow",), s.overflow_closed),
            (("budget",), s.budget_closed),
            (("frames",), s.frames_closed),
        ),
    ),
    gauge(
        "cometmq_unfinished_frame_bytes",
        "Bytes received of frames above 64 KB that are not complete.",
        lambda s: s.frame_bytes,
    ),
    counter(
        "cometmq_long_frames_paused_total",
        "Times that a connection was not read because unfinished frames took much memory.",
        lambda s: s.frames_paused,
    ),
    counter(
        "cometmq_connections_paused_total",
        "Connections paused because the total unsent output exceeded its budget.",
        lambda s: s.budget_paused,
    ),
    counter(
        "cometmq_requests_refused_total",
        "Requests refused with SYSTEM_BUSY because too many were in flight.",
        lambda s: s.requests_refused,
    ),
    counter(
        "cometmq_requests_postponed_total",
        "Requests that waited because there was too much unread output.",
        lambda s: s.requests_postponed,
    ),
    counter(
        "cometmq_handler_failures_total",
        "Requests answered with SYSTEM_ERROR because a handler failed unexpectedly.",
        lambda s: s.handler_failures,
    ),
)
