# SPDX-License-Identifier: Apache-2.0
"""The identity of a client, the unique keys of its messages, and its namespace, which lets tenants
of one cluster use the same topic and group names.

Invariants
    Inside the client every topic and group has its full name, `ns%name`, as brokers see it;
    applications use the short name. The prefix of a retry or dead-letter topic remains in front.
    RocketMQ's own names are shared by all namespaces.
"""

import os
import re
import socket
import time
from ipaddress import ip_address
from itertools import count
from typing import Final
from weakref import WeakSet

import msgspec

from cometmq.client.arguments import check_queue
from cometmq.client.clock import wall_ms
from cometmq.client.settings import NAMESRV_VARIABLE, ClientOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.message.ids import UniqueIds
from cometmq.remoting.names import (
    DLQ_PREFIX,
    NAMESPACE_SEPARATOR,
    RETRY_PREFIX,
    is_system_group,
    is_system_topic,
)

_ENDPOINT: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\..*")


class Namespace(msgspec.Struct, frozen=True):
    """The namespace of one client; an empty namespace changes no name."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, resource: str) -> str:
        """Return the full name of a topic or group; a full name is left unchanged."""
        if not self.name or not resource or is_system(resource):
            return resource
        prefix, rest = _split(resource)
        if rest.startswith(self.name + NAMESPACE_SEPARATOR):
            return resource
        return f"{prefix}{self.name}{NAMESPACE_SEPARATOR}{rest}"

    def unwrap(self, resource: str) -> str:
        """Return the short name; a name from a different namespace is left unchanged."""
        if not self.name or is_system(resource):
            return resource
        prefix, rest = _split(resource)
        mark = self.name + NAMESPACE_SEPARATOR
        return prefix + rest[len(mark) :] if rest.startswith(mark) else resource

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the full name of its topic; InvalidArgument if it is none."""
        check_queue(queue)
        if not self.name:
            return queue
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue with the short name of its topic."""
        if not self.name:
            return queue
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id)


NO_NAMESPACE: Final = Namespace()


def is_system(resource: str) -> bool:
    """Return whether a topic or group belongs to RocketMQ itself."""
    return is_system_topic(resource) or is_system_group(resource)


def without_namespace(resource: str) -> str:
    """Return a name without the prefix of its namespace."""
    if is_system(resource):
        return resource
    prefix, rest = _split(resource)
    at = rest.find(NAMESPACE_SEPARATOR)
    return prefix + rest[at + 1 :] if at > 0 else resource


def namespace_of(options: ClientOptions) -> Namespace:
    """Return the namespace from the options, or from the name server's address.

    Compatibility: `http://MQ_INST_x_y.host:port` is the address form of hosted services.
    """
    if options.namespace:
        return Namespace(options.namespace)
    address = options.namesrv or os.getenv(NAMESRV_VARIABLE, "")
    found = _ENDPOINT.fullmatch(address.strip())
    return Namespace(found.group(1)) if found is not None else NO_NAMESPACE


def _split(resource: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource[len(prefix) :]
    return "", resource


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
