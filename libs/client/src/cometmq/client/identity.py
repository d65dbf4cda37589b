# SPDX-License-Identifier: Apache-2.0
"""The identity of a client: its address, its client id, and the unique keys of its messages."""

import os
import socket
import time
from ipaddress import ip_address
from itertools import count
from typing import Final
from weakref import WeakSet

from cometmq.client.clock import wall_ms
from cometmq.client.settings import ClientOptions
from cometmq.remoting.message.ids import UniqueIds

DEFAULT_INSTANCE: Final = "DEFAULT"
_NOBODY: Final = (
    ("192.0.2.1", 9),
    ("2001:db8::1", 9),
)  # documentation addresses (RFC 5737, RFC 3849), which belong to no host


def local_ip() -> str:
    """Return this machine's outgoing address; no packet is sent."""
    for family, target in zip((socket.AF_INET, socket.AF_INET6), _NOBODY, strict=True):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError:
            continue  # no route of this address family
    return "127.0.0.1"


def client_id_of(options: ClientOptions, *, suffix: str = "", is_named: bool = False) -> str:
    """Return `ip@instance[@unit][@suffix]`, the id under which brokers know this client.

    The instance name DEFAULT is replaced by a unique one; with `is_named`, it is kept.
    """
    instance = options.instance_name
    if instance == DEFAULT_INSTANCE and not is_named:
        instance = f"{os.getpid()}#{_unused_number()}"
    parts = [options.client_ip or local_ip(), instance]
    if options.unit_name:
        parts.append(options.unit_name)
    if suffix:
        parts.append(suffix)
    return "@".join(parts)


# The clock alone does not tell clients apart: tests freeze it, and on some machines it ticks only
# every few milliseconds. Its first value tells processes of one id apart, as those of the
# containers of a pod, which share an address and all have the id 1.
_numbers = count(time.monotonic_ns())
_GENERATORS: Final["WeakSet[UniqueIds]"] = WeakSet()


def _renew_ids() -> None:
    """Make sure that a forked child does not repeat its parent's ids."""
    global _numbers  # noqa: PLW0603  # otherwise all children would continue with the same numbers
    _numbers = count(time.monotonic_ns())
    for ids in _GENERATORS:
        ids.renew(process_id=os.getpid(), instance=_unused_number())


os.register_at_fork(after_in_child=_renew_ids)


def _unused_number() -> int:
    """Return a number that no other client of this process has."""
    return next(_numbers)


def unique_ids(options: ClientOptions) -> UniqueIds:
    """Return a generator of unique keys that no other generator on this machine repeats."""
    address = ip_address(options.client_ip or local_ip()).packed
    ids = UniqueIds(
        address=address,
        process_id=os.getpid(),
        instance=_unused_number(),
        clock_ms=wall_ms,
    )
    _GENERATORS.add(ids)
    return ids
