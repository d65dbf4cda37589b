# SPDX-License-Identifier: Apache-2.0
"""Reads stored messages for comparisons, independently of `cometmq.remoting`.

It omits hosts and store times, which differ between two runs of one server.
"""

import struct
from typing import Final

_FIXED: Final = struct.Struct(">iiiiiqqiq8sq8siq")
_NAMES: Final = (
    "size",
    "magic",
    "crc",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_offset",
)
_DIFFERING: Final = ("born_host", "store_timestamp", "store_host", "physical_offset", "size")


def parse_records(data: bytes) -> list[dict[str, object]]:
    records = []
    start = 0
    while start < len(data):
        record, size = _parse_record(data, start)
        records.append(record)
        start += size
    return records


def _parse_record(data: bytes, start: int) -> tuple[dict[str, object], int]:
    values = dict(zip(_NAMES, _FIXED.unpack_from(data, start), strict=True))
    size = values["size"]
    for name in _DIFFERING:
        del values[name]
    position = start + _FIXED.size
    (body_size,) = struct.unpack_from(">i", data, position)
    body_end = position + 4 + body_size
    values["body"] = data[position + 4 : body_end]
    topic_end = body_end + 1 + data[body_end]
    values["topic"] = data[body_end + 1 : topic_end].decode()
    (properties_size,) = struct.unpack_from(">h", data, topic_end)
    text = data[topic_end + 2 : topic_end + 2 + properties_size].decode()
    values["properties"] = dict(
        pair.split("\x01", 1) for pair in text.split("\x02") if "\x01" in pair
    )
    if start + size != topic_end + 2 + properties_size:
        raise ValueError(f"record at {start} is not as long as it says")
    return values, size
