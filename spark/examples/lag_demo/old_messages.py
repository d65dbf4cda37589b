# SPDX-License-Identifier: Apache-2.0
"""Writes a store with messages that are almost three days old and will soon be deleted.

The demo cannot wait three days, so the store gets a simulated clock; otherwise the files are the
same as a broker's.
"""

import struct
from pathlib import Path
from typing import Final

from cometmq.client.clock import wall_ms
from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.settings import StoreSettings

TOPIC: Final = "Invoices"
QUEUES: Final = 2
HOURS_KEPT: Final = 72
LEFT_MS: Final = 90 * 60_000
"""Remaining lifetime of the oldest message."""
SPAN_MS: Final = 60 * 60_000
COUNT: Final = 7_200
FILE_BYTES: Final = 16 << 20
_BATCH: Final = 100
_HOST: Final = struct.pack(">4BI", 127, 0, 0, 1, 10_911)


def write_old_messages(folder: Path) -> None:
    """Fill a store; no broker may be using it."""
    begin_ms = wall_ms() - HOURS_KEPT * 3_600_000 + LEFT_MS
    now_ms = begin_ms
    settings = StoreSettings(
        store_path_root_dir=str(folder), mapped_file_size_commit_log=FILE_BYTES
    )
    store = MessageStore.open(settings, disk=OsDisk(), clock_ms=lambda: now_ms)
    try:
        for number in range(COUNT):
            now_ms = begin_ms + number * SPAN_MS // COUNT
            store.writer.put(_message(number, now_ms), lambda _: None)
            if number % _BATCH == _BATCH - 1:
                store.writer.commit()
    finally:
        store.close()


def _message(number: int, born_ms: int) -> NewMessage:
    return NewMessage(
        topic=TOPIC,
        queue_id=number % QUEUES,
        flag=0,
        sys_flag=0,
        born_timestamp=born_ms,
        born_host=_HOST,
        store_host=_HOST,
        body=b"invoice %d" % number,
    )
