# SPDX-License-Identifier: Apache-2.0
"""The pod of a broker (pure); it meets the strictest pod security standard."""

from collections.abc import Mapping
from typing import Any, Final

from cometmq.operator.group import (
    CONTROL_PORT,
    HTTP_PORT,
    MAIN_PORT,
    REPLICATION_PORT,
    BrokerGroup,
)

USER: Final = 10_001
GRACE_S: Final = 90
"""A stopping master hands over (2 s), forwards requests (35 s), finishes open ones (5 s), and syncs
its store."""
RECOVERY_MINUTES_MAX: Final = 60
STORE: Final = "/var/lib/cometmq"

_PERIOD_S: Final = 2


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
            _from_pod("COMETMQ_BROKER_BROKER_IP1", "status.podIP"),
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
        # A large store takes minutes to recover after a crash, and must not be killed for it.
        "startupProbe": _probe("startup", failures=RECOVERY_MINUTES_MAX * 60 // _PERIOD_S),
        "livenessProbe": _probe("live", failures=10),
        "readinessProbe": _probe("ready", failures=2),
        "volumeMounts": [
            {"name": "store", "mountPath": STORE},
            {"name": "config", "mountPath": "/etc/cometmq", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  # the path inside the container
        ],
    }


def _from_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probe(service: str, *, failures: int) -> dict[str, Any]:
    return {
        "grpc": {"port": CONTROL_PORT, "service": service},
        "periodSeconds": _PERIOD_S,
        "timeoutSeconds": _PERIOD_S,
        "failureThreshold": failures,
    }


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
