# SPDX-License-Identifier: Apache-2.0
"""Name server addresses as users write them, or as an address server lists them over HTTP."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

from cometmq.client.errors import InvalidArgument, NoNamesrv, shown
from cometmq.client.settings import NAMESRV_VARIABLE
from cometmq.remoting.transport.addresses import is_address, with_port

DEFAULT_PORT: Final = 9876


def parse_addresses(text: str) -> list[str]:
    """Parse `host:port;host:port`; an address without a port gets 9876, as on brokers.

    Raise NoNamesrv if the text is empty, and InvalidArgument if it is malformed.

    Compatibility: `http://` before an address is ignored, because hosted services add it.
    """
    if not isinstance(text, str):
        raise InvalidArgument(
            "name servers must be a string such as '127.0.0.1:9876;127.0.0.2:9876', not "
            f"{shown(text)}"
        )
    addresses = [_parse(part) for it in text.split(";") if (part := it.strip())]
    if not addresses:
        raise NoNamesrv(
            "no name server address: give one, as in Producer(group, '127.0.0.1:9876'), or set the "
            f"environment variable {NAMESRV_VARIABLE}"
        )
    return addresses


def _parse(text: str) -> str:
    address = with_port(text.removeprefix("http://"), DEFAULT_PORT)
    if not is_address(address):
        raise InvalidArgument(
            f"not a name server address: {shown(text)}; write host:port{_meant(text)}, and several "
            "as host:port;host:port"
        )
    return address


def _meant(text: str) -> str:
    """Return a hint that names the address inside a URL; empty if there is none."""
    address = with_port(text.rpartition("://")[2].partition("/")[0], DEFAULT_PORT)
    return f", such as {shown(address)}" if is_address(address) else ""


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
