# SPDX-License-Identifier: Apache-2.0
"""Time SQL filters: compilation, evaluation, and filtered reads."""

import tempfile
import time
from collections.abc import Callable

from timing import compare_and_print

from cometmq.broker.filters.records import sql_record_filter
from cometmq.broker.filters.sql import SqlFilter
from cometmq.remoting.message.ids import pack_host
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import property_bytes
from cometmq.store import MessageStore, OsDisk, StoreSettings
from cometmq.store.queues.matching_reader import RecordTest
from cometmq.store.reads import finish
from cometmq.store.results import GetResult

HOST = pack_host(bytes((127, 0, 0, 1)), 10911)
MESSAGE_COUNT = 4000
SIMPLE = "price > 5"
USUAL = "price BETWEEN 5 AND 50 AND color IN ('red', 'blue')"
LONG = " OR ".join(f"(price = {number} AND color = 'red')" for number in range(50))
NOTHING = "price > 500"


def main() -> None:
    record = encode_record(message(7), 0, 0, 1)
    usual = sql_record_filter(compiled(USUAL))
    compare_and_print(
        {
            "compile usual": (lambda: compiled(USUAL), 500_000),
            "find properties": (lambda: property_bytes(record), 600),
            "usual on a record": (lambda: usual.matches(record), 3_000),
            "simple on a record": (_of(SIMPLE, record), 2_000),
            "long on a record": (_of(LONG, record), None),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        store = MessageStore.open(
            StoreSettings(store_path_root_dir=folder),
            disk=OsDisk(),
            clock_ms=lambda: time.time_ns() // 1_000_000,  # as in the runtime's clock
        )
        for number in range(MESSAGE_COUNT):
            store.writer.put(message(number), _forget)
        store.writer.commit()
        all_of_them, half, none = (
            sql_record_filter(compiled(text)).tester() for text in ("TRUE", "n = 1", NOTHING)
        )
        compare_and_print(
            {
                "get 32, all match": (lambda: _get(store, all_of_them), None),
                "get 32, half match": (lambda: _get(store, half), None),
                "look at 100, none match": (
                    lambda: _get(store, none, MESSAGE_COUNT - 100),
                    400_000,
                ),
            }
        )
        store.close()


def compiled(text: str) -> SqlFilter:
    """Compile a filter without using the cache."""
    return SqlFilter(text)


def message(number: int) -> NewMessage:
    """Build a message with the usual properties and some for filters."""
    properties = {
        "KEYS": f"order-{number}",
        "UNIQ_KEY": f"7F0000010D5A18B4AAC2{number:012X}",
        "CLUSTER": "DefaultCluster",
        "TAGS": "paid",
        "color": ("red", "green", "blue")[number % 3],
        "price": str(number % 100),
        "n": str(number % 2),
    }
    return NewMessage(
        topic="BenchTopic",
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=HOST,
        store_host=HOST,
        body=bytes(128),
        properties="\x02".join(f"{key}\x01{value}" for key, value in properties.items()),
    )


def _of(text: str, record: bytes) -> Callable[[], bool]:
    matches = sql_record_filter(compiled(text)).matches
    return lambda: matches(record)


def _get(store: MessageStore, matches: RecordTest, offset: int = 0) -> GetResult:
    return finish(store.reader.find_messages("BenchTopic", 0, offset, 32, matches))


def _forget(_result: object) -> None:
    """Discard an answer."""


if __name__ == "__main__":
    main()
