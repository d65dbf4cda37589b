# SPDX-License-Identifier: Apache-2.0
"""Sections of a BrokerGroup's spec that say who may connect, and how: see `broker_group.py`."""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cometmq.operator.api_types.schema import OPAQUE, rule, rules

TLS_CERTIFICATE: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
TLS_TRUST: Final = "ca.crt"
"""Keys of a Secret of the type kubernetes.io/tls, as cert-manager writes it."""

GROUP_KEY_FILE: Final = "group.key"

ACL_FILE: Final = "plain_acl.yml"

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"  # noqa: S105  # the name of a key
"""Keys of a Secret with an account; the suite's chart reads the same ones."""


class SecretReason(StrEnum):
    """Reasons of conditions: why a Secret cannot be used."""

    MISSING = "SecretMissing"
    INCOMPLETE = "SecretIncomplete"
    UNUSABLE = "SecretUnusable"
    FORBIDDEN = "SecretForbidden"


_CIDR: Final = r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$"
_OBJECT_NAME: Final = r"^[a-z0-9][a-z0-9.-]*$"


class TlsMode(StrEnum):
    """Whether the client ports accept connections without TLS too."""

    PERMISSIVE = "Permissive"
    ENFORCING = "Enforcing"


class ClientAuth(StrEnum):
    """Whether clients must present a certificate."""

    NONE = "None"
    OPTIONAL = "Optional"
    REQUIRE = "Require"


class ExternalType(StrEnum):
    """How the nodes of the cluster let clients in."""

    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


def secret_name(description: str) -> Meta:
    """Return the bounds of a Secret's name."""
    return Meta(description=description, min_length=1, max_length=253, pattern=_OBJECT_NAME)


class Tls(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
        "Permissive: the client ports accept TLS and plain connections. Enforcing: only TLS; "
        "brokers then use TLS towards name servers as well, and verify them by ca.crt.",
    ] = TlsMode.PERMISSIVE
    client_auth: Annotated[
        ClientAuth,
        "Whether clients must present a certificate that ca.crt has signed: None, Optional, "
        "Require. With Require, the control ports demand one too; operator and brokers present "
        "tls.crt, which must then be valid for clients as well as servers.",
    ] = ClientAuth.NONE
    control_name: (
        Annotated[
            str,
            Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9*][A-Za-z0-9.-]*$"),
            "DNS name in the certificate, if it does not contain the names of the pods.",
        ]
        | None
    ) = None


class Accounts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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


class External(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Addresses for clients outside the cluster."""

    type: Annotated[
        ExternalType,
        "Type of the Service that each broker gets: NodePort, LoadBalancer.",
    ]
    node_ports: Annotated[
        list[Annotated[int, Meta(ge=1, le=65535)]],
        Meta(max_length=9),
        "Type NodePort: the port of each broker on the nodes, starting with that of pod 0. Ports "
        "beyond replicas are for brokers that are added later, without a restart of the others.",
    ] = []
    hosts: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.-]+$")]],
        Meta(max_length=9),
        "Address that each broker registers, starting with that of pod 0. Type LoadBalancer needs "
        "them; with type NodePort, the default is the address of the broker's node. A name must "
        "resolve when the broker starts.",
    ] = []
    master_host: (
        Annotated[
            str,
            Meta(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.-]+$"),
            "Address that the master registers instead of its own, so that clients need no new "
            "route after a failover: that of the load balancer of the Service NAME-master, or "
            "with type NodePort an address that leads to any node that is up, such as a balancer "
            "in front of the nodes. A name must resolve when the broker starts.",
        ]
        | None
    ) = None
    master_node_port: (
        Annotated[int, Meta(ge=1, le=65535), "Type NodePort: the port that goes with it."] | None
    ) = None
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=4096)]],
        Meta(max_length=32),
        "Annotations of the Services.",
    ] = {}
    load_balancer_source_ranges: Annotated[
        list[Annotated[str, Meta(max_length=43, pattern=_CIDR)]],
        Meta(max_length=32),
        "Ranges in CIDR form from which the load balancers accept connections; if empty, all "
        "addresses.",
    ] = []

    def addresses(self, port: int) -> list[str]:
        """Return the address that each broker registers; a broker adds its own host to `:PORT`.

        `port` is the port of the load balancers.
        """
        if self.type is ExternalType.LOAD_BALANCER:
            return [f"{host}:{port}" for host in self.hosts]
        hosts = self.hosts or [""] * len(self.node_ports)
        return [f"{host}:{one}" for host, one in zip(hosts, self.node_ports, strict=False)]


class IpBlock(msgspec.Struct, frozen=True, kw_only=True, rename={"except_": "except"}):
    cidr: Annotated[
        str,
        Meta(max_length=43, pattern=_CIDR),
        "Range in CIDR form, for example 10.0.0.0/8.",
    ]
    except_: Annotated[
        list[Annotated[str, Meta(max_length=43, pattern=_CIDR)]],
        Meta(max_length=32),
        "Ranges inside cidr that are left out.",
    ] = []


class Peer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pod_selector: (
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema=OPAQUE),
            "Labels of pods, as in a NetworkPolicy; {} selects all pods. Without "
            "namespaceSelector, only pods of the group's namespace.",
        ]
        | None
    ) = None
    namespace_selector: (
        Annotated[
            dict[str, Any],
            Meta(extra_json_schema=OPAQUE),
            "Labels of namespaces, as in a NetworkPolicy; {} selects all namespaces.",
        ]
        | None
    ) = None
    ip_block: (
        Annotated[IpBlock, "A range of addresses, for clients outside the cluster."] | None
    ) = None


class Network(msgspec.Struct, frozen=True, kw_only=True):
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
        Meta(max_length=32),
        "Peers that may connect to the client ports (10911 and 10909), as in a NetworkPolicy; "
        "without it, every pod and address may. The group's own brokers and the operator may "
        "always connect. Name every program that uses the brokers, such as producers, consumers "
        "and the txn-checker. The cluster's network plugin must enforce NetworkPolicies.",
    ] = []
