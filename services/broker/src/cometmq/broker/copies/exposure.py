# SPDX-License-Identifier: Apache-2.0
"""Finds out whether programs without the group's key can pose as members of a broker group
(pure).
"""

import ipaddress
from functools import lru_cache
from typing import Final

from cometmq.broker.settings import BrokerSettings

NO_KEY: Final = (
    "the group has no groupKeyFile and haListenPort is open to other hosts: whoever reaches it can"
    " speak as a member, forge acknowledgements and read all messages"
)
NOT_REQUIRED: Final = (
    "groupKeyRequired=false: whoever reaches haListenPort can speak as a member without the key"
)


def exposure(settings: BrokerSettings) -> str:
    """Return why programs without the group's key can pose as members at the
    replication port; empty if they cannot.
    """
    if is_loopback(settings.bind_address):
        return ""
    if not settings.group_key_file:
        return NO_KEY
    return "" if settings.group_key_required else NOT_REQUIRED


@lru_cache(maxsize=8)  # a pure function; watches of the status call it ten times a second
def is_loopback(host: str) -> bool:
    """Return whether a port on this address can be reached from this host only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
