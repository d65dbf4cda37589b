# SPDX-License-Identifier: Apache-2.0
"""Namespaces, which let tenants of one cluster use the same topic and group names.

Invariants
    Inside the client every topic and group has its full name, `ns%name`, as brokers see it;
    applications use the short name. The prefix of a retry or dead-letter topic remains in front.
    RocketMQ's own names are shared by all namespaces.
"""

import os
import re
from typing import Final

import msgspec

from cometmq.client.arguments import check_queue
from cometmq.client.settings import NAMESRV_VARIABLE, ClientOptions
from cometmq.remoting.bodies.queues import MessageQueue
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
