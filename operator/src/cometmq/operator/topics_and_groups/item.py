# SPDX-License-Identifier: Apache-2.0
"""One Topic or ConsumerGroup as read from the API, and its claim to a name in RocketMQ."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cometmq.operator.group import SKIP_DRAIN
from cometmq.operator.models import GROUP
from cometmq.operator.sections import Retain
from cometmq.operator.topics_and_groups.models import ConsumerGroupSpec, TopicSpec

FINALIZER: Final = f"operator.{GROUP}/delete"
"""Present only while deletionPolicy is Delete, so that an object whose topic is retained can be
deleted without an operator.
"""

TOPIC: Final = "Topic"
CONSUMER_GROUP: Final = "ConsumerGroup"
PLURALS: Final[Mapping[str, str]] = {TOPIC: "topics", CONSUMER_GROUP: "consumergroups"}

Key = tuple[str, str, str]
"""Kind, namespace and name of an object."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an object that decide which of several objects owns a name."""

    key: Key
    created: str
    """Creation time in the API's format, which sorts as text."""
    name: str
    cluster: str
    name_servers: frozenset[str]

    @property
    def age(self) -> tuple[str, Key]:
        """Sort key: the oldest object first; objects created in the same second by name."""
        return self.created, self.key

    def competes(self, other: "Claim") -> bool:
        """Return whether both objects declare the same entry in the same cluster."""
        return (
            self.key != other.key
            and (self.key[0], self.name, self.cluster) == (other.key[0], other.name, other.cluster)
            and not self.name_servers.isdisjoint(other.name_servers)
        )


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an object that decisions depend on."""

    key: Key
    uid: str
    generation: int
    created: str
    spec: TopicSpec | ConsumerGroupSpec
    annotations: Mapping[str, str] = {}
    is_deleting: bool = False
    has_finalizer: bool = False

    @property
    def kind(self) -> str:
        return self.key[0]

    @property
    def entry(self) -> str:
        """Name of the topic or consumer group in RocketMQ."""
        return self.spec.name or self.key[2]

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
            created=self.created,
            name=self.entry,
            cluster=self.spec.cluster_name,
            name_servers=frozenset(self.spec.name_servers),
        )


def declared_of(kind: str, body: Mapping[str, Any]) -> Declared:
    """Parse an object; raise msgspec.ValidationError for an invalid spec."""
    metadata = body["metadata"]
    spec: TopicSpec | ConsumerGroupSpec
    if kind == TOPIC:
        spec = msgspec.convert(body["spec"], TopicSpec)
    else:
        spec = msgspec.convert(body["spec"], ConsumerGroupSpec)
    return Declared(
        key=(kind, metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        created=metadata.get("creationTimestamp", ""),
        spec=spec,
        annotations=metadata.get("annotations") or {},
        is_deleting="deletionTimestamp" in metadata,
        has_finalizer=FINALIZER in (metadata.get("finalizers") or ()),
    )


def owner(claim: Claim, others: Iterable[Claim]) -> Claim:
    """Return the oldest claim to the same entry, which may be `claim` itself."""
    return min([claim, *(one for one in others if claim.competes(one))], key=lambda one: one.age)
