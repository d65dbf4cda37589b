# SPDX-License-Identifier: Apache-2.0
"""BrokerGroup, cometmq.io/v1alpha1, as types; the CRD's schema is generated from them.

`kubectl explain` prints the descriptions. `Meta.extra_json_schema` holds the parts of the schema
that types cannot express: rules in CEL, and bounds, without which the API server cannot estimate
the cost of a rule.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cometmq.remoting.names import DEFAULT_CLUSTER

GROUP: Final = "cometmq.io"
VERSION: Final = "v1alpha1"
PLURAL: Final = "brokergroups"
KIND: Final = "BrokerGroup"

OWNED_SETTINGS: Final = (
    "adminHttpPort", "brokerClusterName", "brokerIP1", "brokerIP2", "brokerId", "brokerName",
    "brokerRole", "controlBindAddress", "controlPort", "groupMembers", "groupRecord",
    "haListenPort", "haMasterAddress", "heardWithinMills", "listenPort", "minInSync",
    "namesrvAddr", "renewDeadlineMills", "replicaLagTimeoutMills", "replicationPolicy",
    "storePathCommitLog", "storePathRootDir", "switchoverTimeoutMills",
)  # fmt: skip
"""Settings of a broker that the operator derives from other fields."""

_NAME: Final = r"^[A-Za-z0-9_-]+$"
_CIDR: Final = r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$"


def rule(cel: str, message: str, **more: str) -> dict[str, Any]:
    """Return a validation rule in CEL; `message` states the requirement."""
    return {"rule": cel, "message": message, **more}


def rules(*each: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the additions to a schema: rules, and other keywords."""
    return {"x-kubernetes-validations": list(each), **more}


IMMUTABLE: Final = rule(
    "self == oldSelf",
    "cannot be changed: create another BrokerGroup and let this one drain",
)


class AckPolicy(StrEnum):
    """When a message counts as stored."""

    ALL_IN_SYNC = "AllInSync"
    MAJORITY = "Majority"


class PullPolicy(StrEnum):
    """When a node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class Retain(StrEnum):
    """Whether volumes that are no longer used are kept or deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class Rollout(StrEnum):
    """How changed pods are replaced."""

    ROLLING_SWITCHOVER = "RollingSwitchover"
    ON_DELETE = "OnDelete"


class Deletion(StrEnum):
    """Whether a deletion drains the group first."""

    DRAIN = "Drain"
    NOW = "Now"


class TlsMode(StrEnum):
    """Whether the client ports accept connections without TLS too."""

    PERMISSIVE = "Permissive"
    ENFORCING = "Enforcing"


class ClientAuth(StrEnum):
    """Whether clients must present a certificate."""

    NONE = "None"
    OPTIONAL = "Optional"
    REQUIRE = "Require"


class Image(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The container image of the brokers."""

    name: (
        Annotated[
            str,
            Meta(
                description="Image with registry, repository, and tag or digest. Without it, the"
                " operator's default is used, which is the image of its own release.",
                min_length=1,
                max_length=512,
            ),
        ]
        | None
    ) = None
    pull_policy: Annotated[
        PullPolicy, Meta(description="When a node pulls the image: Always, IfNotPresent, Never.")
    ] = PullPolicy.IF_NOT_PRESENT
    pull_secrets: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=253)]],
        Meta(
            description="Names of Secrets in this namespace with the credentials of the registry.",
            max_length=8,
        ),
    ] = []


class Replication(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a message counts as stored, and how soon a lost master is replaced."""

    policy: Annotated[
        AckPolicy,
        Meta(
            description="When a send is acknowledged. AllInSync: once every copy in the in-sync"
            " set has the message; copies that fall behind leave the set. Majority: once more"
            " than half of all copies have it; this needs three replicas and cannot be changed.",
            extra_json_schema=rules(IMMUTABLE),
        ),
    ] = AckPolicy.ALL_IN_SYNC
    min_in_sync: Annotated[
        int,
        Meta(
            description="Number of copies, including the master's, that must be in sync for sends"
            " to be accepted. With 2 of 2, sends stop while either pod is down; with 1, they"
            " continue, but losing the remaining disk would then lose messages.",
            ge=1,
            le=9,
        ),
    ] = 1
    renew_deadline_ms: Annotated[
        int,
        Meta(
            description="If a master has not renewed the record for this many milliseconds, and its"
            " copies are also silent, it stops acknowledging messages. A failover waits 1.3 times"
            " as long if nothing else shows that the master is lost.",
            ge=500,
            le=600_000,
        ),
    ] = 6_000
    heard_within_ms: Annotated[
        int,
        Meta(
            description="How long the master's replication stream may be silent, in milliseconds,"
            " before its slaves and the operator consider the master lost.",
            ge=300,
            le=60_000,
        ),
    ] = 1_500
    replica_lag_timeout_ms: Annotated[
        int,
        Meta(
            description="Milliseconds after which a slave that has not caught up leaves the in-sync"
            " set.",
            ge=100,
            le=600_000,
        ),
    ] = 10_000
    switchover_timeout_ms: Annotated[
        int,
        Meta(
            description="How long, in milliseconds, a master holds back requests during a"
            " switchover before it gives up. Keep it below the send timeout of the clients, which"
            " is 3000 by default.",
            ge=10,
            le=60_000,
        ),
    ] = 2_000


class StorageRetention(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Retention policy for the volumes of removed pods."""

    when_deleted: Annotated[
        Retain,
        Meta(
            description="Whether to Retain or Delete the volumes when the BrokerGroup is deleted."
        ),
    ] = Retain.RETAIN
    when_scaled: Annotated[
        Retain,
        Meta(
            description="Whether to Retain or Delete the volume of a removed pod when replicas is"
            " lowered."
        ),
    ] = Retain.RETAIN


class Storage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The volume of each broker."""

    size: Annotated[
        str,
        Meta(
            description="Size of each volume, for example 20Gi. It can grow if the storage class"
            " allows expansion, but never shrink.",
            max_length=20,
            pattern=r"^[1-9][0-9]*(Mi|Gi|Ti)$",
            extra_json_schema=rules(
                rule(
                    "quantity(self).compareTo(quantity(oldSelf)) >= 0",
                    "volumes can grow but not shrink: keep the size or raise it",
                )
            ),
        ),
    ] = "20Gi"
    class_name: (
        Annotated[
            str,
            Meta(
                description="Storage class of the volumes; without it, the cluster's default.",
                min_length=1,
                max_length=253,
            ),
        ]
        | None
    ) = None
    retain: Annotated[
        StorageRetention,
        Meta(description="What happens to the volumes of pods that have been removed."),
    ] = StorageRetention()


OPAQUE: Final = {"x-kubernetes-preserve-unknown-fields": True}
Opaque = Annotated[dict[str, Any], Meta(extra_json_schema=OPAQUE)]


class Scheduling(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where pods run, in the fields of a pod's spec."""

    node_selector: Annotated[
        dict[str, Annotated[str, Meta(max_length=63)]],
        Meta(description="Labels that a node must have.", max_length=32),
    ] = {}
    tolerations: Annotated[
        list[Opaque], Meta(description="Taints that pods tolerate.", max_length=32)
    ] = []
    affinity: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Affinity of the pods. Without it, the pods of a group prefer different"
                " nodes.",
                extra_json_schema=OPAQUE,
            ),
        ]
        | None
    ) = None
    topology_spread_constraints: Annotated[
        list[Opaque],
        Meta(
            description="How pods spread over zones and nodes. Without it, they spread over zones"
            " where possible.",
            max_length=8,
        ),
    ] = []
    priority_class_name: (
        Annotated[str, Meta(description="Priority class of the pods.", max_length=253)] | None
    ) = None


class DisruptionBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The PodDisruptionBudget of the group."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether a PodDisruptionBudget limits node drains to one broker of the"
            " group at a time. A group with one replica never gets such a budget, because it would"
            " block drains."
        ),
    ] = True


_OBJECT_NAME: Final = r"^[a-z0-9][a-z0-9.-]*$"


def secret_name(description: str) -> Meta:
    """Return the bounds of a Secret's name."""
    return Meta(description=description, min_length=1, max_length=253, pattern=_OBJECT_NAME)


class Tls(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """TLS of the brokers."""

    secret_name: Annotated[
        str,
        secret_name(
            "Secret in this namespace with tls.crt, tls.key and ca.crt, as cert-manager writes it."
            " Brokers and operator use a changed Secret without a restart. The control ports use"
            " the certificate too, and the operator verifies the names in it: it must be valid for"
            " *.NAME-peers.NAMESPACE.svc, where NAME is the name of this object, or for"
            " controlName."
        ),
    ]
    mode: Annotated[
        TlsMode,
        Meta(
            description="Permissive: the client ports accept TLS and plain connections."
            " Enforcing: only TLS; brokers then use TLS towards name servers as well, and verify"
            " them by ca.crt."
        ),
    ] = TlsMode.PERMISSIVE
    client_auth: Annotated[
        ClientAuth,
        Meta(
            description="Whether clients must present a certificate that ca.crt has signed: None,"
            " Optional, Require. With Require, the control ports demand one too; operator and"
            " brokers present tls.crt, which must then be valid for clients as well as servers."
        ),
    ] = ClientAuth.NONE
    control_name: (
        Annotated[
            str,
            Meta(
                description="DNS name in the certificate, if it does not contain the names of the"
                " pods.",
                min_length=1,
                max_length=253,
                pattern=r"^[A-Za-z0-9*][A-Za-z0-9.-]*$",
            ),
        ]
        | None
    ) = None


class Accounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Access control by accounts."""

    secret_name: Annotated[
        str,
        secret_name(
            "Secret in this namespace with plain_acl.yml, RocketMQ's file of accounts. Brokers"
            " load a changed file without a restart."
        ),
    ]
    operator_secret_name: Annotated[
        str,
        secret_name(
            "Secret in this namespace with the accessKey and secretKey of an administrator in"
            " plain_acl.yml. The operator counts the unconsumed messages with it before it deletes"
            " the group."
        ),
    ]


class IpBlock(msgspec.Struct, frozen=True, kw_only=True, rename={"except_": "except"}):
    """A range of addresses."""

    cidr: Annotated[
        str,
        Meta(
            description="Range in CIDR form, for example 10.0.0.0/8.",
            max_length=43,
            pattern=_CIDR,
        ),
    ]
    except_: Annotated[
        list[Annotated[str, Meta(max_length=43, pattern=_CIDR)]],
        Meta(description="Ranges inside cidr that are left out.", max_length=32),
    ] = []


class Peer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A NetworkPolicyPeer."""

    pod_selector: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Labels of pods, as in a NetworkPolicy; {} selects all pods. Without"
                " namespaceSelector, only pods of the group's namespace.",
                extra_json_schema=OPAQUE,
            ),
        ]
        | None
    ) = None
    namespace_selector: (
        Annotated[
            dict[str, Any],
            Meta(
                description="Labels of namespaces, as in a NetworkPolicy; {} selects all"
                " namespaces.",
                extra_json_schema=OPAQUE,
            ),
        ]
        | None
    ) = None
    ip_block: (
        Annotated[
            IpBlock, Meta(description="A range of addresses, for clients outside the cluster.")
        ]
        | None
    ) = None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The NetworkPolicy of the group."""

    clients: Annotated[
        list[
            Annotated[
                Peer,
                Meta(
                    extra_json_schema=rules(
                        rule(
                            "has(self.podSelector) || has(self.namespaceSelector) ||"
                            " has(self.ipBlock)",
                            "a peer needs podSelector, namespaceSelector or ipBlock",
                        ),
                        rule(
                            "!has(self.ipBlock) ||"
                            " !(has(self.podSelector) || has(self.namespaceSelector))",
                            "ipBlock cannot be combined with selectors: use two peers",
                        ),
                    )
                ),
            ]
        ],
        Meta(
            description="Peers that may connect to the client ports (10911 and 10909), as in a"
            " NetworkPolicy; without it, every pod and address may. The group's own brokers and the"
            " operator may always connect. Name every program that uses the brokers, such as"
            " producers, consumers and the txn-checker. The cluster's network plugin must enforce"
            " NetworkPolicies.",
            max_length=32,
        ),
    ] = []


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """How changed pods are replaced."""

    type: Annotated[
        Rollout,
        Meta(
            description="RollingSwitchover: slaves are replaced first, one at a time, each back in"
            " sync before the next; then comes a switchover, and then the old master is"
            " replaced. OnDelete: pods are replaced when someone deletes them."
        ),
    ] = Rollout.ROLLING_SWITCHOVER


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The desired state of a broker group."""

    name_servers: Annotated[
        list[
            Annotated[
                str, Meta(min_length=3, max_length=261, pattern=r"^[A-Za-z0-9.-]+:[0-9]{1,5}$")
            ]
        ],
        Meta(
            description="Name servers as HOST:PORT. Brokers register with each address that a name"
            " resolves to.",
            min_length=1,
            max_length=16,
        ),
    ]
    cluster_name: Annotated[
        str,
        Meta(
            description="RocketMQ's cluster name, which groups with the same topics share.",
            min_length=1,
            max_length=127,
            pattern=_NAME,
            extra_json_schema=rules(IMMUTABLE),
        ),
    ] = DEFAULT_CLUSTER
    broker_name: (
        Annotated[
            str,
            Meta(
                description="RocketMQ's brokerName, which clients see in routes. By default, the"
                " name of this object. It must be unique among all groups of a name server.",
                min_length=1,
                max_length=127,
                pattern=_NAME,
                extra_json_schema=rules(IMMUTABLE),
            ),
        ]
        | None
    ) = None
    replicas: Annotated[
        int,
        Meta(
            description="Number of brokers: a master, and slaves with a full copy. `kubectl scale`"
            " changes it. A broker that is being removed hands over its role first.",
            ge=1,
            le=9,
        ),
    ] = 2
    image: Annotated[Image, Meta(description="The container image of the brokers.")] = Image()
    replication: Annotated[
        Replication,
        Meta(
            description="When a message counts as stored, and how soon a lost master is replaced.",
            extra_json_schema=rules(
                rule(
                    "self.heardWithinMs < self.renewDeadlineMs",
                    "heardWithinMs must be less than renewDeadlineMs",
                )
            ),
        ),
    ] = Replication()
    config: Annotated[
        dict[str, Annotated[str, Meta(max_length=1024)]],
        Meta(
            description="Settings of the brokers, under RocketMQ's names: fileReservedTime,"
            " flushDiskType, autoCreateTopicEnable and others. Settings that other fields"
            " determine are refused. A change restarts the brokers one at a time.",
            max_length=200,
            extra_json_schema=rules(
                rule(
                    f"self.all(k, !(k in {list(OWNED_SETTINGS)!r}))",
                    "the operator sets these keys from other fields, remove them: "
                    + ", ".join(OWNED_SETTINGS),
                ),
                rule(
                    "self.all(k, k.matches('^[A-Za-z][A-Za-z0-9._]*$'))",
                    "keys are names of settings, such as fileReservedTime",
                ),
                rule(
                    "self.all(k, !self[k].contains('\\n'))",
                    "values are single lines",
                ),
            ),
        ),
    ] = {}
    storage: Annotated[
        Storage,
        Meta(
            description="The volume of each broker.",
            extra_json_schema=rules(
                rule(
                    "has(self.className) == has(oldSelf.className) &&"
                    " (!has(self.className) || self.className == oldSelf.className)",
                    "className cannot be changed: volumes keep their class",
                )
            ),
        ),
    ] = Storage()
    resources: Annotated[
        dict[str, Any],
        Meta(
            description="Resource requests and limits of the broker's container, as in a pod.",
            extra_json_schema={
                **OPAQUE,
                "default": {"requests": {"cpu": "500m", "memory": "1Gi"}},
            },
        ),
    ] = {}
    scheduling: Annotated[
        Scheduling, Meta(description="Where pods run; the fields are the same as in a pod.")
    ] = Scheduling()
    pod_disruption_budget: Annotated[
        DisruptionBudget, Meta(description="The PodDisruptionBudget of the group.")
    ] = DisruptionBudget()
    tls: (
        Annotated[
            Tls,
            Meta(
                description="TLS of the client ports and control ports. Without it, the client"
                " ports accept TLS with a certificate that clients cannot verify, and the control"
                " ports are plain. Adding or removing it restarts the brokers one at a time."
            ),
        ]
        | None
    ) = None
    accounts: (
        Annotated[
            Accounts,
            Meta(
                description="Access control by accounts. Without it, every client may do"
                " everything. Adding or removing it restarts the brokers one at a time."
            ),
        ]
        | None
    ) = None
    network_policy: Annotated[Network, Meta(description="The NetworkPolicy of the group.")] = (
        Network()
    )
    update_strategy: Annotated[Update, Meta(description="How changed pods are replaced.")] = (
        Update()
    )
    deletion: Annotated[
        Deletion,
        Meta(
            description="What a deletion waits for. Drain: routes mark the group as read-only, and"
            " the group remains until producers have left and consumers have consumed everything;"
            " status.drain shows what is left. Now: nothing."
        ),
    ] = Deletion.DRAIN
    paused: Annotated[
        bool,
        Meta(
            description="Whether the operator leaves the group's objects alone. Failover still"
            " works."
        ),
    ] = False


SPEC_RULES: Final = (
    rule(
        "!has(self.tls) || !has(self.config) ||"
        " self.config.all(k, !k.startsWith('tls.') && k != 'useTLS')",
        "with spec.tls, config must not have the keys useTLS and tls.*: remove them",
        fieldPath=".config",
    ),
    rule(
        "!has(self.accounts) || !has(self.config) ||"
        " self.config.all(k, !(k in ['aclEnable', 'aclFile']))",
        "with spec.accounts, config must not have the keys aclEnable and aclFile: remove them",
        fieldPath=".config",
    ),
    rule(
        "self.replication.minInSync <= self.replicas",
        "replication.minInSync must not exceed replicas: no message would ever be accepted",
        fieldPath=".replication.minInSync",
    ),
    rule(
        "self.replication.policy != 'Majority' || self.replicas >= 3",
        "replication.policy Majority needs replicas of 3 or more: use AllInSync",
        fieldPath=".replication.policy",
    ),
    rule(
        "self.replication.policy != 'Majority' || self.replicas == oldSelf.replicas",
        "with replication.policy Majority the number of replicas cannot be changed",
        fieldPath=".replicas",
    ),
    rule(
        "has(self.brokerName) == has(oldSelf.brokerName)",
        "brokerName cannot be added or removed later",
        fieldPath=".brokerName",
    ),
)
"""Rules about several fields of the spec."""

ROOT_RULES: Final = (
    rule(
        "self.metadata.name.size() <= 40",
        "metadata.name may have at most 40 characters: names of pods and services derive from it",
    ),
)
