# SPDX-License-Identifier: Apache-2.0
"""Where the settings of a CometMQ broker come from, as its HTTP port tells."""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

TIMEOUT_S: Final = 1.0
PAGE_BYTES_MAX: Final = 256 * 1024
_LINE: Final = re.compile(r"([\w.]+)=.*?  # (.*)")


async def origins_of(address: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return the source of each setting; empty if the broker does not tell, as Java's never do."""
    port = config.get("adminHttpPort", "")
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        return {}
    host = address.rpartition(":")[0].strip("[]")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            page = await _fetched(host, int(port))
    except (OSError, TimeoutError, ValueError):
        return {}
    return parsed(page)


def parsed(page: str) -> dict[str, str]:
    """Parse the broker's part of the page /settings."""
    found: dict[str, str] = {}
    part = ""
    for line in page.splitlines():
        if line.startswith("# "):
            part = line[2:].strip()
        elif part == "broker" and (match := _LINE.fullmatch(line)):
            found[match[1]] = match[2].strip()
    return found


async def _fetched(host: str, port: int) -> str:
    reader, writer = await asyncio.open_connection(host, port, limit=PAGE_BYTES_MAX)
    try:
        writer.write(
            f"GET /settings HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = b""
        while len(answer) < PAGE_BYTES_MAX and (part := await reader.read(65_536)):
            answer += part
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        return ""
    return body.decode("utf-8", "replace")
