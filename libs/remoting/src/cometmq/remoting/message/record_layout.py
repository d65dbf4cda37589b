# SPDX-License-Identifier: Apache-2.0
"""Constants and fixed structures of a commit log record.

The decoder is in `record.py`, the encoder in `new_message.py`.

Layout (docs/protocol/record.md): total size, magic, body CRC, queue id, flag, queue offset,
physical offset, sysFlag, born timestamp, born host, store timestamp, store host, reconsume
times, prepared transaction offset, body, topic, properties.
"""

import struct
from typing import Final

from cometmq.remoting.message.flags import SysFlag

MAGIC_V1: Final = -626843481  # 0xDAA320A7
MAGIC_V2: Final = -626843477  # 0xDAA320AB
MAGIC_BLANK: Final = -875286124  # 0xCBD43194
BLANK_BYTES_MIN: Final = 8
TOPIC_BYTES_MAX: Final = 127
QUEUE_ID_MAX: Final = (1 << 31) - 1
CRC_MASK: Final = 0x7FFFFFFF

V4_HOST_BYTES: Final = 8
V6_HOST_BYTES: Final = 20

HOST_MASK: Final = SysFlag.BORN_HOST_V6.value | SysFlag.STORE_HOST_V6.value
SIZE_MAGIC: Final = struct.Struct(">ii")


def _fixed_part(born_bytes: int, store_bytes: int) -> struct.Struct:
    return struct.Struct(f">iiIiiqqiq{born_bytes}sq{store_bytes}siqi")


FIXED: Final = {
    born | store: _fixed_part(
        V6_HOST_BYTES if born else V4_HOST_BYTES, V6_HOST_BYTES if store else V4_HOST_BYTES
    )
    for born in (0, SysFlag.BORN_HOST_V6.value)
    for store in (0, SysFlag.STORE_HOST_V6.value)
}
"""The fields from total size to body length, by the host bits of sysFlag."""

FIXED_V4: Final = FIXED[0]
TOPIC_LENGTH_BYTES: Final = 1
PROPERTIES_LENGTH_BYTES: Final = 2
RECORD_BYTES_MIN: Final = FIXED_V4.size + TOPIC_LENGTH_BYTES + PROPERTIES_LENGTH_BYTES
