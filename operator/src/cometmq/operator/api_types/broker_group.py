# SPDX-License-Identifier: Apache-2.0
"""BrokerGroup, cometmq.io/v1alpha1, as types; the CRD's schema is generated from them.

`kubectl explain` prints the descriptions. `Meta.extra_json_schema` holds the parts of the schema
that types cannot express: rules in CEL, and bounds, without which the API server cannot estimate
the cost of a rule.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cometmq.operator.api_types.schema import OPAQUE, rule, rules
from cometmq.operator.api_types.sections import (
    IMMUTABLE,
    Deletion,
    DisruptionBudget,
    Image,
    NameServer,
    Replication,
    Scheduling,
    Storage,
    Update,
)
from cometmq.operator.api_types.security_sections import Accounts, External, Network, Tls
from cometmq.remoting.names import DEFAULT_CLUSTER

GROUP: Final = "cometmq.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
PLURAL: Final = "brokergroups"
KIND: Final = "BrokerGroup"

OWNED_SETTINGS: Final = (
    "adminHttpPort", "advertisedAddresses", "brokerClusterName", "brokerIP1", "brokerIP2",
    "brokerId", "brokerName", "brokerRole", "controlBindAddress", "controlPort", "groupAddress",
    "groupKeyFile", "groupKeyRequired", "groupMembers", "groupRecord", "haListenPort",
    "haMasterAddress", "heardWithinMills", "listenPort", "minInSync", "namesrvAddr",
    "renewDeadlineMills", "replicaLagTimeoutMills", "roleHook",
    "storePathCommitLog", "storePathRootDir", "switchoverTimeoutMills",
)  # fmt: skip
"""Settings of a broker that the operator derives from other fields."""

_NAME: Final = r"^[A-Za-z0-9_-]+$"


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The desired state of a broker group."""

    name_servers: Annotated[
        list[NameServer],
        Meta(min_length=1, max_length=16),
        "Name servers as HOST:PORT. Brokers register with each address that a name resolves to.",
    ]
    cluster_name: Annotated[
        str,
        Meta(min_length=1, max_length=127, pattern=_NAME, extra_json_schema=rules(IMMUTABLE)),
        "RocketMQ's cluster name, which groups with the same topics share.",
    ] = DEFAULT_CLUSTER
    broker_name: (
        Annotated[
            str,
            Meta(min_length=1, max_length=127, pattern=_NAME, extra_json_schema=rules(IMMUTABLE)),
            "RocketMQ's brokerName, which clients see in routes. By default, the name of this "
            "object. It must be unique among all groups of a name server.",
        ]
        | None
    ) = None
    replicas: Annotated[
        int,
        Meta(ge=1, le=9),
        "Number of brokers: a master, and slaves with a full copy. `kubectl scale` changes it. A "
        "broker that is being removed hands over its role first.",
    ] = 2
    image: Annotated[Image, "The container image of the brokers."] = Image()
    replication: Annotated[
        Replication,
        Meta(
            extra_json_schema=rules(
                rule(
                    "self.heardWithinMs < self.renewDeadlineMs",
                    "heardWithinMs must be less than renewDeadlineMs",
                )
            )
        ),
        "When a message counts as stored, and how soon a lost master is replaced.",
    ] = Replication()
    config: Annotated[
        dict[str, Annotated[str, Meta(max_length=1024)]],
        Meta(
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
        "Settings of the brokers, under RocketMQ's names: fileReservedTime, flushDiskType, "
        "autoCreateTopicEnable and others. Settings that other fields determine are refused. A "
        "change restarts the brokers one at a time.",
    ] = {}
    storage: Annotated[
        Storage,
        Meta(
            extra_json_schema=rules(
                rule(
                    "has(self.className) == has(oldSelf.className) &&"
                    " (!has(self.className) || self.className == oldSelf.className)",
                    "className cannot be changed: volumes keep their class",
                )
            )
        ),
        "The volume of each broker.",
    ] = Storage()
    resources: Annotated[
        dict[str, Any],
        Meta(
            extra_json_schema={
                **OPAQUE,
                "default": {"requests": {"cpu": "500m", "memory": "1Gi"}},
            }
        ),
        "Resource requests and limits of the broker's container, as in a pod.",
    ] = {}
    scheduling: Annotated[Scheduling, "Where pods run; the fields are the same as in a pod."] = (
        Scheduling()
    )
    pod_disruption_budget: Annotated[DisruptionBudget, "The PodDisruptionBudget of the group."] = (
        DisruptionBudget()
    )
    tls: (
        Annotated[
            Tls,
            "TLS of the client ports and control ports. Without it, the client ports accept TLS "
            "with a certificate that clients cannot verify, and the control ports are plain. "
            "Adding or removing it restarts the brokers one at a time.",
        ]
        | None
    ) = None
    accounts: (
        Annotated[
            Accounts,
            "Access control by accounts. Without it, every client may do everything. Adding or "
            "removing it restarts the brokers one at a time.",
        ]
        | None
    ) = None
    external: (
        Annotated[
            External,
            Meta(
                extra_json_schema=rules(
                    rule(
                        "!has(self.nodePorts) ||"
                        " self.nodePorts.all(p, self.nodePorts.exists_one(q, q == p))",
                        "two brokers cannot have the same node port",
                    ),
                    rule(
                        "self.type == 'NodePort' || !has(self.nodePorts) ||"
                        " self.nodePorts.size() == 0",
                        "nodePorts need type NodePort",
                    ),
                    rule(
                        "has(self.masterNodePort) =="
                        " (has(self.masterHost) && self.type == 'NodePort')",
                        "type NodePort needs masterHost and masterNodePort, or neither; type"
                        " LoadBalancer has no masterNodePort",
                    ),
                    rule(
                        "!has(self.masterNodePort) || !has(self.nodePorts) ||"
                        " self.nodePorts.all(p, p != self.masterNodePort)",
                        "masterNodePort cannot be the node port of a broker",
                    ),
                )
            ),
            "Addresses for clients outside the cluster. A broker registers one address, so "
            "clients inside the cluster use it too. Adding, changing or removing it restarts the "
            "brokers one at a time.",
        ]
        | None
    ) = None
    master_service: Annotated[
        bool,
        "Whether clients reach the master at the address of a Service, NAME-master, which the "
        "operator points at the current master. Clients then need no new route after a failover; "
        "otherwise they use the address of the master's pod, and ask for the next one within 30 "
        "s. Clients that reach pods but not Services need false. With external, "
        "external.masterHost decides. A change restarts the brokers one at a time.",
    ] = True
    network_policy: Annotated[Network, "The NetworkPolicy of the group."] = Network()
    update_strategy: Annotated[Update, "How changed pods are replaced."] = Update()
    deletion: Annotated[
        Deletion,
        "What a deletion waits for. Drain: routes mark the group as read-only, and the group "
        "remains until producers have left and consumers have consumed everything; status.drain "
        "shows what is left. Now: nothing.",
    ] = Deletion.DRAIN
    paused: Annotated[
        bool,
        "Whether the operator leaves the group's objects alone. Failover still works.",
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
        "!has(self.external) || self.external.type != 'NodePort' ||"
        " (has(self.external.nodePorts) && self.external.nodePorts.size() >= self.replicas)",
        "external.nodePorts needs a port for each of the replicas",
        fieldPath=".external.nodePorts",
    ),
    rule(
        "!has(self.external) || self.external.type != 'LoadBalancer' ||"
        " (has(self.external.hosts) && self.external.hosts.size() >= self.replicas)",
        "external.hosts needs the address of a load balancer for each of the replicas",
        fieldPath=".external.hosts",
    ),
    rule(
        "!has(self.external) || !has(self.external.hosts) || self.external.hosts.size() == 0 ||"
        " self.external.hosts.size() >= self.replicas",
        "external.hosts needs an address for each of the replicas, or none",
        fieldPath=".external.hosts",
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
        "self.metadata.name >= 'a' && !self.metadata.name.contains('.')",
        "metadata.name must begin with a letter and have no dot, as the names of services, which"
        " derive from it",
    ),
    rule(
        "self.metadata.name.size() <= 40",
        "metadata.name may have at most 40 characters: names of pods and services derive from it",
    ),
)
