# SPDX-License-Identifier: Apache-2.0
"""Name server lists served over HTTP by an address server.

Compatibility: the body has RocketMQ's format, `host:port;host:port` on the first line. If a fetch
fails, the client keeps using the addresses it has.
"""

import asyncio
from typing import Final
from urllib.parse import urlsplit

from cometmq.client.errors import InvalidArgument, NoNamesrv
from cometmq.client.shown import shown

POLL_INTERVAL_MS: Final = 120_000
TIMEOUT_MS: Final = 3_000
_LIST_BYTES_MAX: Final = 64 * 1024


def check_url(url: str) -> None:
    """Raise InvalidArgument unless `url` is an HTTP or HTTPS URL."""
    if urlsplit(url).scheme not in {"http", "https"}:
        raise InvalidArgument(f"namesrv_url is not an HTTP URL: {shown(url)}")


async def fetch_namesrv_list(url: str) -> str:
    """Fetch the list from an address server; raise NoNamesrv on failure."""
    check_url(url)
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000 + 1):
            text = await asyncio.to_thread(_fetch, url)
    except (OSError, ValueError, TimeoutError) as error:
        raise NoNamesrv(f"the address server {url} does not answer: {error}") from error
    first, *_ = text.strip().splitlines() or [""]
    if not first.strip():
        raise NoNamesrv(f"the address server {url} returned no name server address")
    return first.strip()


def _fetch(url: str) -> str:
    # Loading urllib.request takes 11 ms, and few clients use an address server.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415

    from cometmq.client.http_fetch import fetch  # noqa: PLC0415

    try:
        data = fetch(url, timeout_s=TIMEOUT_MS / 1000, bytes_max=_LIST_BYTES_MAX)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    except HTTPException as error:
        raise ValueError(f"no HTTP answer: {error!r}") from error
    return data.decode("utf-8", "replace")
