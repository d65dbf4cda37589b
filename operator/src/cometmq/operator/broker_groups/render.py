# SPDX-License-Identifier: Apache-2.0
"""Builds the objects that a BrokerGroup owns (pure), as the operator applies them.

Server-side apply leaves fields that are absent here to their other managers.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.operator.api_types.broker_group import API_VERSION, GROUP, KIND
from cometmq.operator.api_types.security_sections import (
    ACL_FILE,
    GROUP_KEY_FILE,
    TLS_CERTIFICATE,
    TLS_KEY,
    TLS_TRUST,
    Accounts,
    External,
    ExternalType,
    Tls,
    TlsMode,
)
from cometmq.operator.broker_groups.group import (
    CONTROL_NAME,
    CONTROL_PORT,
    HTTP_PORT,
    KEY_MARK,
    KEY_OPTIONAL,
    KEY_REQUIRED,
    MAIN_PORT,
    MEMBERS_MAX,
    REPLICATION_PORT,
    RESTART,
    TLS_SECRET,
    VOLUME,
    BrokerGroup,
)
from cometmq.operator.broker_groups.pod import ACCOUNTS, GROUP_KEY, STORE, TLS, pod_template
from cometmq.runtime import properties

Object = dict[str, Any]

CONFIG_FILE: Final = "broker.conf"
CONFIG_HASH: Final = f"{GROUP}/config-hash"
LINGER_MS: Final = 35_000
"""How long a deposed master forwards requests before it stops: clients ask for routes every 30 s,
and the address of a pod disappears with the pod."""
REGISTER_MS: Final = 10_000
"""Interval of registrations. Each registration resolves the addresses of the name servers again,
because their pods often get new ones.
"""
OPTIONAL: Final = ("PodDisruptionBudget", "Service")
"""Kinds of the objects that a group has only with certain specs."""


def broker_conf(
    group: BrokerGroup, *, is_key_required: bool = True, group_address: str = ""
) -> str:
    """Return the settings of all brokers; the id and the address of each come from its pod.

    With `is_key_required`, brokers accept only members that prove that they know the group's key.
    `group_address` is the address that leads to the master; if it is empty, the master registers
    its own address.
    """
    spec, replication = group.spec, group.spec.replication
    members = (f"{one}={group.host(one)}:{MAIN_PORT}" for one in range(MEMBERS_MAX))
    settings = {
        "handOverLingerMills": str(LINGER_MS),
        "registerNameServerPeriod": str(REGISTER_MS),
        "frozenMasterMills": str(replication.heard_within_ms * 4 // 3),
        **spec.config,
        "brokerClusterName": spec.cluster_name,
        "brokerName": group.broker_name,
        "namesrvAddr": ";".join(spec.name_servers),
        "listenPort": str(MAIN_PORT),
        "haListenPort": str(REPLICATION_PORT),
        "controlPort": str(CONTROL_PORT),
        "controlBindAddress": "0.0.0.0",  # noqa: S104  # the NetworkPolicy limits who reaches it
        "adminHttpPort": str(HTTP_PORT),
        "storePathRootDir": STORE,
        "groupKeyFile": f"{GROUP_KEY}/{GROUP_KEY_FILE}",
        **({} if is_key_required else {"groupKeyRequired": "false"}),
        **({"groupAddress": group_address} if group_address else {}),
        "groupRecord": f"kubernetes:{group.namespace}/{group.name}",
        "groupMembers": ";".join(members),
        "minInSync": str(replication.min_in_sync),
        "renewDeadlineMills": str(replication.renew_deadline_ms),
        "heardWithinMills": str(replication.heard_within_ms),
        "replicaLagTimeoutMills": str(replication.replica_lag_timeout_ms),
        "switchoverTimeoutMills": str(replication.switchover_timeout_ms),
        **_external_settings(spec.external),
        **_tls_settings(spec.tls),
        **_account_settings(spec.accounts),
    }
    return properties.render(dict(sorted(settings.items())))


def _external_settings(external: External | None) -> dict[str, str]:
    if external is None:
        return {}
    addresses = enumerate(external.addresses(MAIN_PORT))
    return {"advertisedAddresses": ";".join(f"{one}={address}" for one, address in addresses)}


def _tls_settings(tls: Tls | None) -> dict[str, str]:
    """Return the settings for TLS, the same ones as in the suite's chart."""
    if tls is None:
        return {}
    return {
        "tls.enable": str(tls.mode is TlsMode.ENFORCING).lower(),
        "tls.server.mode": tls.mode.value.lower(),
        "tls.server.need.client.auth": tls.client_auth.value.lower(),
        "tls.server.certPath": f"{TLS}/{TLS_CERTIFICATE}",
        "tls.server.keyPath": f"{TLS}/{TLS_KEY}",
        "tls.server.trustCertPath": f"{TLS}/{TLS_TRUST}",
        "tls.client.certPath": f"{TLS}/{TLS_CERTIFICATE}",
        "tls.client.keyPath": f"{TLS}/{TLS_KEY}",
        "tls.client.trustCertPath": f"{TLS}/{TLS_TRUST}",
        "tls.client.authServer": "true",
    }


def _account_settings(accounts: Accounts | None) -> dict[str, str]:
    return {} if accounts is None else {"aclEnable": "true", "aclFile": f"{ACCOUNTS}/{ACL_FILE}"}


def config_hash(wanted: list[Object]) -> str:
    """Return a hash of the settings in objects; pods with a different hash must restart."""
    return str(wanted[-1]["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH])


def objects(
    group: BrokerGroup,
    *,
    image: str,
    replicas: int,
    volume_size: str,
    operator_namespace: str,
    is_key_required: bool = True,
    group_address: str = "",
) -> list[Object]:
    """Return the objects, in the order in which they must be applied.

    `replicas` and `volume_size` are those of the StatefulSet. They may differ from the spec: a pod
    is kept until it has left the group, and volume templates cannot be changed.
    """
    conf = broker_conf(group, is_key_required=is_key_required, group_address=group_address)
    found = [
        *([master_service(group)] if group.has_master_service else []),
        owned(group, "v1", "ServiceAccount", group.account, automountServiceAccountToken=False),
        _role(group),
        _role_binding(group),
        owned(group, "v1", "ConfigMap", f"{group.name}-config", data={CONFIG_FILE: conf}),
        _peers(group),
        *_external_services(group, replicas),
        _network_policy(group, operator_namespace),
    ]
    if wants_budget(group):
        found.append(_budget(group))
    return [
        *found,
        _stateful_set(group, image, replicas, volume_size, _marks(group, conf, is_key_required)),
    ]


def wants_budget(group: BrokerGroup) -> bool:
    """Return whether the group gets a PodDisruptionBudget; with one pod it would block drains."""
    return group.spec.pod_disruption_budget.enabled and group.spec.replicas > 1


def owner(group: BrokerGroup) -> Object:
    """Return the owner reference that makes Kubernetes delete an object with its group."""
    return {
        "apiVersion": API_VERSION, "kind": KIND, "name": group.name, "uid": group.uid,
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def owned(group: BrokerGroup, version: str, kind: str, name: str, **rest: Any) -> Object:
    """Return an object of a group, which Kubernetes deletes with it."""
    labels = {
        **group.labels,
        "app.kubernetes.io/component": "broker",
        "app.kubernetes.io/part-of": "cometmq",
        "app.kubernetes.io/managed-by": "cometmq-operator",
    }
    metadata = {
        "name": name,
        "namespace": group.namespace,
        "labels": labels,
        "ownerReferences": [owner(group)],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _ports(ports: Mapping[str, int]) -> list[Object]:
    return [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
        for name, port in ports.items()
    ]


def _role(group: BrokerGroup) -> Object:
    """Return the Role of brokers: they may read and change only the record of their group."""
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [group.name],
        "verbs": ["get", "list", "watch", "patch"],
    }
    return owned(group, "rbac.authorization.k8s.io/v1", "Role", group.account, rules=[rule])


def _role_binding(group: BrokerGroup) -> Object:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": group.account}
    account = {"kind": "ServiceAccount", "name": group.account, "namespace": group.namespace}
    return owned(
        group, "rbac.authorization.k8s.io/v1", "RoleBinding", group.account,
        roleRef=role, subjects=[account],
    )  # fmt: skip


def _peers(group: BrokerGroup) -> Object:
    ports = {"main": MAIN_PORT, "replication": REPLICATION_PORT, "control": CONTROL_PORT}
    spec = {
        "clusterIP": "None",
        # Brokers and the operator must find each other before there is a master.
        "publishNotReadyAddresses": True,
        "selector": group.labels,
        "ports": _ports(ports),
    }
    return owned(group, "v1", "Service", group.peers, spec=spec)


def master_service(group: BrokerGroup) -> Object:
    """Return the Service that leads to the master; its address is in the settings of brokers."""
    spec: Object = {"type": "ClusterIP", "ports": _ports(group.client_ports)}
    external = group.spec.external
    if external is not None:
        spec["type"] = external.type.value
        if external.type is ExternalType.NODE_PORT and external.master_node_port:
            spec["ports"][0]["nodePort"] = external.master_node_port
    return _outside(group, owned(group, "v1", "Service", group.master_service, spec=spec))


def _outside(group: BrokerGroup, service: Object) -> Object:
    """Add the annotations and source ranges in `external` to a Service, and return it."""
    external = group.spec.external
    if external is not None and external.load_balancer_source_ranges:
        service["spec"]["loadBalancerSourceRanges"] = list(external.load_balancer_source_ranges)
    if external is not None and external.annotations:
        service["metadata"]["annotations"] = dict(external.annotations)
    return service


def _external_services(group: BrokerGroup, replicas: int) -> list[Object]:
    """Return a Service for each broker, because clients must reach the one that has the message."""
    external = group.spec.external
    if external is None:
        return []
    services = []
    for ordinal in range(replicas):
        spec: Object = {
            "type": external.type.value,
            # A pod that no name server lists is not ready, but clients that know it go on.
            "publishNotReadyAddresses": True,
            "selector": {**group.labels, "statefulset.kubernetes.io/pod-name": group.pod(ordinal)},
            "ports": _ports({"main": MAIN_PORT}),
        }
        if external.type is ExternalType.NODE_PORT and ordinal < len(external.node_ports):
            spec["ports"][0]["nodePort"] = external.node_ports[ordinal]
        if external.type is ExternalType.NODE_PORT and not external.hosts:
            # The registered address is that of the broker's node, so no other node has to forward.
            spec["externalTrafficPolicy"] = "Local"
        service = owned(group, "v1", "Service", f"{group.pod(ordinal)}-external", spec=spec)
        services.append(_outside(group, service))
    return services


def _network_policy(group: BrokerGroup, operator_namespace: str) -> Object:
    """Return the NetworkPolicy of the pods.

    Only members and the operator reach the control port, because its callers can depose the master.
    Members forward requests to a new master, and the operator counts messages, so both reach the
    client ports even if the spec limits the clients.
    """
    peers = {"podSelector": {"matchLabels": group.labels}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "cometmq-operator"}},
    }

    def tcp(*ports: int) -> list[Object]:
        return [{"protocol": "TCP", "port": port} for port in ports]

    clients = [msgspec.to_builtins(one) for one in group.spec.network_policy.clients]
    admitted = {"from": [*clients, peers, operator]} if clients else {}
    spec = {
        "podSelector": {"matchLabels": group.labels},
        "policyTypes": ["Ingress"],
        "ingress": [
            {**admitted, "ports": tcp(MAIN_PORT, MAIN_PORT - 2)},
            {"ports": tcp(HTTP_PORT)},
            {"from": [peers], "ports": tcp(REPLICATION_PORT, CONTROL_PORT)},
            {"from": [operator], "ports": tcp(CONTROL_PORT)},
        ],
    }
    return owned(group, "networking.k8s.io/v1", "NetworkPolicy", group.name, spec=spec)


def _budget(group: BrokerGroup) -> Object:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": group.labels}}
    return owned(group, "policy/v1", "PodDisruptionBudget", group.name, spec=spec)


def _stateful_set(
    group: BrokerGroup, image: str, replicas: int, volume_size: str, marks: dict[str, str]
) -> Object:
    storage = group.spec.storage
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": VOLUME},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": volume_size}},
            **({"storageClassName": storage.class_name} if storage.class_name else {}),
        },
    }
    spec = {
        "serviceName": group.peers,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        # Only the operator decides which pod is deleted next.
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": group.labels},
        "persistentVolumeClaimRetentionPolicy": {
            "whenDeleted": storage.retain.when_deleted.value,
            "whenScaled": storage.retain.when_scaled.value,
        },
        "template": pod_template(group, image=image, annotations=marks),
        "volumeClaimTemplates": [claim],
    }
    return owned(group, "apps/v1", "StatefulSet", group.name, spec=spec)


def _marks(group: BrokerGroup, conf: str, is_key_required: bool) -> dict[str, str]:
    """Return the annotations of new pods."""
    marks = {
        CONFIG_HASH: hashlib.sha256(conf.encode()).hexdigest()[:16],
        KEY_MARK: KEY_REQUIRED if is_key_required else KEY_OPTIONAL,
    }
    if group.spec.tls is not None:
        # The operator reads the annotations of a pod to learn how to reach its control port.
        marks[TLS_SECRET] = group.spec.tls.secret_name
        if group.spec.tls.control_name is not None:
            marks[CONTROL_NAME] = group.spec.tls.control_name
    if restart := group.annotations.get(RESTART):
        marks[RESTART] = restart
    return marks
