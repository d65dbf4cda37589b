# SPDX-License-Identifier: Apache-2.0
"""Message trace: the sender, consumers, times and results of each message.

Clients with the `trace` option send these records to a topic, where RocketMQ's tools and dashboards
find them by message id or key.
"""

from cometmq.client.trace.records import (
    CorruptTrace,
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
    encode_record,
    record_keys,
)

__all__ = [
    "CorruptTrace",
    "EndTransaction",
    "Pub",
    "SubAfter",
    "SubBefore",
    "TraceRecord",
    "decode_trace",
    "encode_record",
    "record_keys",
]
