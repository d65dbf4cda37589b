# SPDX-License-Identifier: Apache-2.0
"""Topic and ConsumerGroup, cometmq.io/v1alpha1."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cometmq.operator.api_types.schema import rule, rules
from cometmq.operator.api_types.sections import NameServer, Retain
from cometmq.operator.api_types.security_sections import secret_name
from cometmq.operator.api_types.status import Condition
from cometmq.remoting.bodies.topic_config import QUEUES_MAX
from cometmq.remoting.names import (
    BOOT_GROUPS,
    DEFAULT_CLUSTER,
    RESERVED_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
)

BROKERS_MAX: Final = 64
_NAME: Final = r"^[A-Za-z0-9_|-][A-Za-z0-9_%|-]*$"
_BROKER_NAME: Final = r"^[A-Za-z0-9_-]+$"


TOPIC: Final = "Topic"
CONSUMER_GROUP: Final = "ConsumerGroup"
PLURALS: Final[Mapping[str, str]] = {TOPIC: "topics", CONSUMER_GROUP: "consumergroups"}


class Permission(StrEnum):
    """The operations that a topic permits."""

    READ_WRITE = "ReadWrite"
    READ = "Read"
    WRITE = "Write"


def _fixed(what: str) -> dict[str, Any]:
    return rule("self == oldSelf", f"cannot be changed: create another {what}, and delete this one")


def _prefixes(*prefixes: str) -> str:
    return " && ".join(f"!self.startsWith('{one}')" for one in prefixes)


NameServers = Annotated[
    list[NameServer],
    Meta(min_length=1, max_length=16),
    "Name servers as HOST:PORT. The operator finds the brokers through them. Use the same "
    "addresses in all objects of a cluster: the operator recognizes duplicates by them.",
]
BrokerNames = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=127, pattern=_BROKER_NAME)]],
    Meta(max_length=BROKERS_MAX, extra_json_schema={"x-kubernetes-list-type": "set"}),
    "Names of the broker groups (RocketMQ's brokerName) that get the settings. Without it, "
    "all broker groups of the cluster get them, including groups that are added later. A "
    "broker group that is removed from the list keeps its current settings.",
]


class ClientTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """TLS of the operator's connections."""

    secret_name: Annotated[
        str,
        secret_name(
            "Secret in this namespace with ca.crt, by which the operator verifies name servers and"
            " brokers. If it has tls.crt and tls.key too, the operator presents this certificate."
        ),
    ]


Tls = Annotated[
    ClientTls,
    "TLS of the operator's connections to name servers and brokers. Without it, they are "
    "plain, and brokers that enforce TLS refuse them.",
]
AccountSecretName = Annotated[
    str,
    secret_name(
        "Secret in this namespace with the accessKey and secretKey of an administrator of the"
        " brokers. Without it, the operator's requests are not signed, and brokers with access"
        " control refuse them."
    ),
]


def _cluster_name(what: str, kind: str) -> Meta:
    return Meta(
        description=f"RocketMQ's name of the cluster that has the {what}.",
        min_length=1,
        max_length=127,
        pattern=_BROKER_NAME,
        extra_json_schema=rules(_fixed(kind)),
    )


def _name(what: str, kind: str, length_max: int, is_free: dict[str, Any]) -> Meta:
    noun = what.removeprefix("consumer ")
    return Meta(
        description=f"Name of the {what} in RocketMQ. By default, the name of this object; a {noun}"
        " whose name has capitals, underscores or a namespace needs this field.",
        min_length=1,
        max_length=length_max,
        pattern=_NAME,
        extra_json_schema=rules(_fixed(kind), is_free),
    )


DELETION_TEXT: Final = (
    "What happens in the brokers when this object is deleted. Retain: nothing. Delete: {}; the"
    " deletion of the object waits until then. Change it to Retain to end the wait."
)


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The desired state of a topic."""

    name_servers: NameServers
    cluster_name: Annotated[str, _cluster_name("topic", "Topic")] = DEFAULT_CLUSTER
    broker_names: BrokerNames = []
    name: (
        Annotated[
            str,
            _name(
                "topic",
                "Topic",
                127,
                rule(
                    f"!(self in {sorted(SYSTEM_TOPICS)!r}) && "
                    + _prefixes(SYSTEM_TOPIC_PREFIX, RESERVED_TOPIC_PREFIX),
                    "is a topic of RocketMQ's own: choose another name",
                ),
            ),
        ]
        | None
    ) = None
    write_queue_nums: Annotated[
        int,
        Meta(ge=1, le=QUEUES_MAX),
        "Number of queues per broker group to which producers send.",
    ] = 8
    read_queue_nums: (
        Annotated[
            int,
            Meta(ge=1, le=QUEUES_MAX),
            "Number of queues per broker group from which consumers read; by default, "
            "writeQueueNums. If it is lowered, the operator first stops producers from using the "
            "surplus queues, and removes these queues once every consumer group has consumed "
            "their messages.",
        ]
        | None
    ) = None
    permission: Annotated[Permission, "Permission of the topic: ReadWrite, Read or Write."] = (
        Permission.READ_WRITE
    )
    topic_sys_flag: Annotated[
        int,
        Meta(ge=0, le=3),
        "RocketMQ's flags: 1 for a topic of a unit, 2 for a topic with subscriptions from units, "
        "3 for both.",
    ] = 0
    tls: Tls | None = None
    account_secret_name: AccountSecretName | None = None
    deletion_policy: Annotated[
        Retain,
        DELETION_TEXT.format(
            "the topic becomes read-only, and is deleted with its messages once every consumer"
            " group has consumed them and nothing has been stored for a minute"
        ),
    ] = Retain.RETAIN


class ConsumerGroupSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The desired state of a consumer group."""

    name_servers: NameServers
    cluster_name: Annotated[str, _cluster_name("consumer group", "ConsumerGroup")] = DEFAULT_CLUSTER
    broker_names: BrokerNames = []
    name: (
        Annotated[
            str,
            _name(
                "consumer group",
                "ConsumerGroup",
                255,
                rule(
                    f"!(self in {list(BOOT_GROUPS)!r}) && " + _prefixes(SYSTEM_GROUP_PREFIX),
                    "is a group of RocketMQ's own: choose another name",
                ),
            ),
        ]
        | None
    ) = None
    consume_enable: Annotated[bool, "Whether brokers deliver messages to the group."] = True
    consume_broadcast_enable: Annotated[
        bool, "Whether the group may consume in broadcasting mode."
    ] = True
    consume_from_min_enable: Annotated[
        bool,
        "Whether the group may start at the oldest message. RocketMQ stores the setting, but does "
        "not act on it.",
    ] = True
    notify_consumer_ids_changed_enable: Annotated[
        bool,
        "Whether brokers tell the members at once that a member has joined or left; otherwise, "
        "they notice within 20 s.",
    ] = True
    retry_queue_nums: Annotated[
        int,
        Meta(ge=0, le=QUEUES_MAX),
        "Number of queues per broker group for messages that are redelivered. 0 drops messages "
        "whose consumption failed.",
    ] = 1
    retry_max_times: Annotated[
        int,
        Meta(ge=0, le=1_000),
        "Number of redeliveries after which a message becomes a dead letter. Clients may set "
        "their own limit.",
    ] = 16
    which_broker_when_consume_slowly: Annotated[
        int,
        Meta(ge=0, le=1_000),
        "Id of the broker that members read from if they are far behind; 1 is the first slave.",
    ] = 1
    tls: Tls | None = None
    account_secret_name: AccountSecretName | None = None
    deletion_policy: Annotated[
        Retain,
        DELETION_TEXT.format(
            "the settings of the consumer group are deleted once it has consumed everything"
            " and its members have left; its offsets are kept"
        ),
    ] = Retain.RETAIN


SAME_NAME: Final = rule(
    "has(self.name) == has(oldSelf.name)",
    "name cannot be added or removed later",
    fieldPath=".name",
)
TOPIC_RULES: Final = (
    SAME_NAME,
    rule(
        "!has(self.readQueueNums) || self.readQueueNums >= self.writeQueueNums",
        "readQueueNums must be at least writeQueueNums: no consumer would read the other queues",
        fieldPath=".readQueueNums",
    ),
)
GROUP_RULES: Final = (SAME_NAME,)


def _root_rules(length: int) -> tuple[dict[str, Any], ...]:
    return (
        rule(
            "has(self.spec.name) || !self.metadata.name.contains('.')",
            "metadata.name has a dot, which RocketMQ does not allow: set spec.name",
        ),
        rule(
            f"has(self.spec.name) || self.metadata.name.size() <= {length}",
            f"metadata.name has more than {length} characters: set spec.name",
        ),
    )


TOPIC_ROOT_RULES: Final = _root_rules(127)
GROUP_ROOT_RULES: Final = _root_rules(255)


class BrokerEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One broker group that has the topic or consumer group."""

    name: Annotated[str, Meta(max_length=127), "RocketMQ's brokerName."]
    current: Annotated[bool, "Whether its settings match the spec."] = False
    message: Annotated[
        str, Meta(max_length=1024), "How its settings differ, or why they are unknown."
    ] = ""


class DeclaredStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state in the brokers, as last seen by the operator."""

    observed_generation: Annotated[
        int, "Generation of the spec that the operator has acted on."
    ] = 0
    name: Annotated[str, Meta(max_length=255), "Name in RocketMQ."] = ""
    owned: Annotated[
        bool,
        "Whether this object determines the settings: false while an older object declares the "
        "same name in the same cluster.",
    ] = False
    brokers: Annotated[
        list[BrokerEntry],
        Meta(max_length=1_024),
        "The broker groups, by name.",
    ] = []
    conditions: Annotated[
        list[Condition],
        Meta(
            max_length=16,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        ),
        "Conditions of the object: Ready.",
    ] = []
