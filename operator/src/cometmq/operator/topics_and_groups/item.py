# SPDX-License-Identifier: Apache-2.0
"""One Topic or ConsumerGroup as read from the API, and its claim to a name in RocketMQ."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cometmq.operator.api_types.sections import Retain
from cometmq.operator.api_types.topics_and_groups import TOPIC, ConsumerGroupSpec, TopicSpec
from cometmq.operator.managed import SKIP_DRAIN, Key, Managed, metadata_of

Entry = tuple[str, str, str]
"""A topic or consumer group: its kind, its name, and the name of its cluster."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an object that decide which of several objects owns an entry (a topic or
    consumer group in a cluster).
    """

    key: Key
    uid: str
    created: str
    """Creation time in the API's format, which sorts as text."""
    name: str
    cluster: str
    name_servers: frozenset[str]
    brokers: frozenset[str] | None = None
    """Addresses of the masters that a pass has found; None before the first pass. They show whether
    two objects mean the same cluster, even if they name its name servers differently.
    """

    @property
    def entry(self) -> Entry:
        return self.key[0], self.name, self.cluster

    @property
    def age(self) -> tuple[str, Key]:
        """Sort key: the oldest object first; objects created in the same second by name."""
        return self.created, self.key

    def is_namesake(self, other: "Claim") -> bool:
        """Return whether both objects declare the same entry in clusters of the same name."""
        return self.key != other.key and self.entry == other.entry

    def competes(self, other: "Claim") -> bool:
        """Return whether both objects declare the same entry in the same cluster."""
        return self.is_namesake(other) and not (
            self.name_servers.isdisjoint(other.name_servers)
            and (self.brokers or frozenset()).isdisjoint(other.brokers or ())
        )


class Declared(Managed, frozen=True, kw_only=True):
    """The parts of an object that decisions depend on."""

    kind: str
    created: str
    spec: TopicSpec | ConsumerGroupSpec

    @property
    def key(self) -> Key:
        return self.kind, self.namespace, self.name

    @property
    def entry(self) -> str:
        """Name of the topic or consumer group in RocketMQ."""
        return self.spec.name or self.name

    @property
    def is_to_delete(self) -> bool:
        """Whether the entry is deleted together with the object."""
        return self.spec.deletion_policy is Retain.DELETE

    @property
    def skips_drain(self) -> bool:
        return self.annotations.get(SKIP_DRAIN) == "true"

    @property
    def claim(self) -> Claim:
        return Claim(
            key=self.key,
            uid=self.uid,
            created=self.created,
            name=self.entry,
            cluster=self.spec.cluster_name,
            name_servers=frozenset(self.spec.name_servers),
        )


def declared_of(kind: str, body: Mapping[str, Any]) -> Declared:
    """Parse an object; raise msgspec.ValidationError for an invalid spec."""
    spec: TopicSpec | ConsumerGroupSpec
    if kind == TOPIC:
        spec = msgspec.convert(body["spec"], TopicSpec)
    else:
        spec = msgspec.convert(body["spec"], ConsumerGroupSpec)
    created = body["metadata"].get("creationTimestamp", "")
    return Declared(kind=kind, created=created, spec=spec, **metadata_of(body))


def owner(claim: Claim, others: Iterable[Claim]) -> Claim:
    """Return the oldest claim to the same entry, which may be `claim` itself."""
    return min([claim, *(one for one in others if claim.competes(one))], key=lambda one: one.age)
