# SPDX-License-Identifier: Apache-2.0
"""A request, its answer and narrow limits, for tests of bounds."""

from cometmq.remoting import RawCommand, Reply, RequestCode
from cometmq.remoting.commands.offsets import QueryConsumerOffset
from cometmq.remoting.transport import ServerSettings
from cometmq.testing.remoting.frames import encode_frame

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
EXT = {"consumerGroup": "g", "topic": "t", "queueId": "3"}
REQUEST = encode_frame(RawCommand(code=QUERY, ext=EXT))
ANSWER = Reply(body=bytes(64 * 1024))
SMALL = ServerSettings(
    write_high_water_bytes=128 * 1024,
    write_low_water_bytes=32 * 1024,
    unsent_bytes_max=8 * 1024 * 1024,
    stall_timeout_ms=200,
    check_interval_ms=20,
)
