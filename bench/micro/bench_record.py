# SPDX-License-Identifier: Apache-2.0
"""Time message records, ids and hashes; the modules' docstrings state the budgets."""

from timing import compare_and_print

from cometmq.remoting.message.flags import index_hash, java_hash, tag_code
from cometmq.remoting.message.ids import offset_message_id
from cometmq.remoting.message.new_message import NewMessage, encode_record, record_size
from cometmq.remoting.message.properties import parse_properties, property_value
from cometmq.remoting.message.record import decode_record, scan_record

BORN = bytes.fromhex("0a0000020000c350")
STORE = bytes.fromhex("0a00000100002a9f")
UNIQUE_KEY = "7F00000112324E0E2F2A63A316590002"
PROPERTIES = f"UNIQ_KEY\x01{UNIQUE_KEY}\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA"
MESSAGE = NewMessage("BenchTopic", 3, 0, 0, 1700000000000, BORN, STORE, b"x" * 128, PROPERTIES)
RECORD = encode_record(MESSAGE, 5, 1000, 1700000000001)


def hash_by_loop(text: str) -> int:
    """Compute the hash with the obvious implementation, for comparison."""
    value = 0
    for unit in text.encode("utf-16-le")[::2]:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def main() -> None:
    compare_and_print(
        {
            "encode_record of 128 B": (lambda: encode_record(MESSAGE, 5, 1000, 1), 600),
            "record_size": (lambda: record_size(MESSAGE), None),
            "scan_record": (lambda: scan_record(RECORD), 1200),
            "scan_record with CRC": (lambda: scan_record(RECORD, 0, check_crc=True), None),
            "decode_record": (lambda: decode_record(RECORD), None),
            "tag_code": (lambda: tag_code("TagA"), None),
            "java_hash of 32 hex digits": (lambda: java_hash(UNIQUE_KEY), None),
            "hash by a loop": (lambda: hash_by_loop(UNIQUE_KEY), None),
            "index_hash of 32 hex digits": (lambda: index_hash("BenchTopic", UNIQUE_KEY), 500),
            "index_hash of other text": (lambda: index_hash("BenchTopic", "base.py:1234"), 500),
            "offset_message_id": (lambda: offset_message_id(STORE, 123456), None),
            "property_value": (lambda: property_value(PROPERTIES, "TAGS"), None),
            "parse_properties": (lambda: parse_properties(PROPERTIES), None),
        }
    )


if __name__ == "__main__":
    main()
