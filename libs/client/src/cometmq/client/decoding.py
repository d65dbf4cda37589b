# SPDX-License-Identifier: Apache-2.0
"""Decodes large answers on a thread, so that no server holds the event loop."""

import asyncio
from typing import Final, TypeVar

from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.types import Buffer

T = TypeVar("T")

ON_LOOP_BYTES_MAX: Final = 32 << 10
"""In Java's dialect, 32 KiB take up to 5 ms, and a frame of 16 MiB up to 3 s; on a thread, the loop
gets its turn after each 5 ms.
"""


async def decode_answer(type_: type[T], body: Buffer) -> T:
    """Decode an answer as `decode_json` does, on a thread if it is large."""
    if len(body) <= ON_LOOP_BYTES_MAX:
        return decode_json(type_, body)
    return await asyncio.to_thread(decode_json, type_, bytes(body))
