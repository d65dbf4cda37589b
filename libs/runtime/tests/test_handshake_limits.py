# SPDX-License-Identifier: Apache-2.0
"""The documented limits of frames and TLS handshakes are those that the transport enforces."""

import asyncio

from cometmq.remoting.transport.handshakes import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_TIMEOUT_MS,
    HOST_MIN,
    Handshakes,
)
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.tls import IDLE_RECORDS_MAX
from cometmq.runtime.limits import FRAME_LIMITS, HANDSHAKE_LIMITS


async def test_the_table_of_limits_has_every_limit_of_handshakes() -> None:
    bounds = {limit.name: limit.fixed for limit in HANDSHAKE_LIMITS}
    for connections_max in (10, 1_000, 10_000):
        handshakes = Handshakes(asyncio.get_running_loop(), connections_max)
        count = 0
        while handshakes.begin("a"):
            count += 1
        assert count == max(connections_max * bounds["handshakes"] // 100, HOST_MIN)
    assert bounds["handshake_bytes"] == HANDSHAKE_BYTES_MAX
    assert bounds["handshake_ms"] == HANDSHAKE_TIMEOUT_MS
    assert bounds["idle_records"] == IDLE_RECORDS_MAX
    assert len(bounds) == len(HANDSHAKE_LIMITS) == 4


def test_the_table_of_limits_has_every_limit_of_frames() -> None:
    settings = ServerSettings()
    assert {limit.name: limit.fixed for limit in FRAME_LIMITS} == {
        "frame_bytes": settings.frame_bytes_max,
        "unfinished_frame_bytes": settings.frames_bytes_max,
    }
