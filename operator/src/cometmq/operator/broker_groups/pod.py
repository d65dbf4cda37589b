# SPDX-License-Identifier: Apache-2.0
"""The pod of a broker (pure); it meets the strictest pod security standard."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from cometmq.operator.api_types.security_sections import (
    ACL_FILE,
    GROUP_KEY_FILE,
    TLS_CERTIFICATE,
    TLS_KEY,
    TLS_TRUST,
    External,
    ExternalType,
)
from cometmq.operator.broker_groups.group import (
    CONTROL_PORT,
    HTTP_PORT,
    MAIN_PORT,
    REPLICATION_PORT,
    VOLUME,
    BrokerGroup,
)

USER: Final = 10_001
GRACE_S: Final = 90
"""A stopping master hands over (2 s), forwards requests (35 s), finishes open ones (5 s), and syncs
its store."""
RECOVERY_MINUTES_MAX: Final = 60
STORE: Final = "/var/lib/cometmq"

TLS: Final = "/etc/cometmq-tls"
ACCOUNTS: Final = "/etc/cometmq-accounts"
GROUP_KEY: Final = "/etc/cometmq-group-key"
"""Folders of Secrets. They are outside the folder of the ConfigMap, where the runtime could not
create them."""

_PERIOD_S: Final = 2
_SECRET_FILE_MODE: Final = 0o440


def pod_template(
    group: BrokerGroup, *, image: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """Return the template of the group's pods; if it changes, they restart one by one."""
    spec, scheduling = group.spec, group.spec.scheduling
    pod: dict[str, Any] = {
        "serviceAccountName": group.account,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_S,
        "enableServiceLinks": False,
        # The kernel kills no process with number 1 for itself (frozenMasterMills).
        "shareProcessNamespace": True,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": scheduling.affinity or _spread_over_nodes(group),
        "topologySpreadConstraints": list(scheduling.topology_spread_constraints)
        or _spread_over_zones(group),
        "containers": [_container(group, image)],
        "volumes": [
            {"name": "config", "configMap": {"name": f"{group.name}-config"}},
            {"name": "tmp", "emptyDir": {}},
            *({"name": name, "secret": secret} for name, _, secret in _secrets(group)),
        ],
    }
    if spec.image.pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image.pull_secrets]
    if scheduling.node_selector:
        pod["nodeSelector"] = dict(scheduling.node_selector)
    if scheduling.tolerations:
        pod["tolerations"] = list(scheduling.tolerations)
    if scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    labels = {**group.labels, "app.kubernetes.io/component": "broker"}
    return {"metadata": {"labels": labels, "annotations": dict(annotations)}, "spec": pod}


def _container(group: BrokerGroup, image: str) -> dict[str, Any]:
    ports = {
        "main": MAIN_PORT, "replication": REPLICATION_PORT, "control": CONTROL_PORT,
        "http": HTTP_PORT,
    }  # fmt: skip
    return {
        "name": "broker",
        "image": group.spec.image.name or image,
        "imagePullPolicy": group.spec.image.pull_policy.value,
        "command": ["cometmq", "broker", "-c", "/etc/cometmq/broker.conf", "--log-json"],
        "env": [
            _from_pod(
                "COMETMQ_BROKER_BROKER_ID", "metadata.labels['apps.kubernetes.io/pod-index']"
            ),
            _from_pod("COMETMQ_BROKER_BROKER_IP1", _address(group.spec.external)),
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ],
        "resources": dict(group.spec.resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **(_probes(_by_grpc) if group.spec.tls is None else _probes(_by_http)),
        "volumeMounts": [
            {"name": VOLUME, "mountPath": STORE},
            {"name": "config", "mountPath": "/etc/cometmq", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the path inside the container
            *(
                {"name": name, "mountPath": path, "readOnly": True}
                for name, path, _ in _secrets(group)
            ),
        ],
    }


def _address(external: External | None) -> str:
    """Return the field with the host that a broker registers if the spec does not name it."""
    if external is None or external.type is not ExternalType.NODE_PORT or external.hosts:
        return "status.podIP"
    return "status.hostIP"


def _from_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _secrets(group: BrokerGroup) -> list[tuple[str, str, dict[str, Any]]]:
    """Return name, folder and source of each volume with a Secret.

    The volume is a folder, because the kubelet never updates single mounted files.
    """
    tls, accounts = group.spec.tls, group.spec.accounts
    found = [("group-key", GROUP_KEY, _source(group.key_secret, (GROUP_KEY_FILE,)))]
    if tls is not None:
        found.append(("tls", TLS, _source(tls.secret_name, (TLS_CERTIFICATE, TLS_KEY, TLS_TRUST))))
    if accounts is not None:
        found.append(("accounts", ACCOUNTS, _source(accounts.secret_name, (ACL_FILE,))))
    return found


def _source(name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    return {
        "secretName": name,
        "defaultMode": _SECRET_FILE_MODE,
        "items": [{"key": key, "path": key} for key in keys],
    }


def _probes(action: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    # A large store takes minutes to recover after a crash, and must not be killed for it.
    failures = {"startup": RECOVERY_MINUTES_MAX * 60 // _PERIOD_S, "live": 10, "ready": 2}
    names = {"startup": "startupProbe", "live": "livenessProbe", "ready": "readinessProbe"}
    return {
        names[check]: {
            **action(check),
            "periodSeconds": _PERIOD_S,
            "timeoutSeconds": _PERIOD_S,
            "failureThreshold": count,
        }
        for check, count in failures.items()
    }


def _by_grpc(check: str) -> dict[str, Any]:
    return {"grpc": {"port": CONTROL_PORT, "service": check}}


def _by_http(check: str) -> dict[str, Any]:
    """Return a probe of the HTTP port: the kubelet cannot use TLS for gRPC probes.

    The port opens once the store is recovered, so the startup probe fails until then.
    """
    path = "/readyz" if check == "ready" else "/healthz"
    return {"httpGet": {"path": path, "port": HTTP_PORT}}


def _spread_over_nodes(group: BrokerGroup) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": group.labels},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def _spread_over_zones(group: BrokerGroup) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": group.labels},
        }
    ]
