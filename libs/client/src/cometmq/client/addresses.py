# SPDX-License-Identifier: Apache-2.0
"""Name server addresses as users write them."""

from typing import Final

from cometmq.client.errors import InvalidArgument, NoNamesrv
from cometmq.client.settings import NAMESRV_VARIABLE
from cometmq.client.shown import shown
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
