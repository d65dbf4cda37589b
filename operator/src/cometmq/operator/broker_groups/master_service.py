# SPDX-License-Identifier: Apache-2.0
"""The Service whose address always leads to a group's master (pure).

The Service selects no pods. Its EndpointSlice has one endpoint, the master's pod, and an annotation
with the epoch of that master, so that a late write cannot move it back. A selector on the label of
the role would name two pods while the old master's node is silent, and would be slower: a
controller of Kubernetes would first have to see the label.
"""

from ipaddress import ip_address
from typing import Any, Final

import msgspec

from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.api_types.security_sections import ExternalType
from cometmq.operator.broker_groups.group import MAIN_PORT, BrokerGroup

Object = dict[str, Any]

EPOCH: Final = f"{GROUP}/epoch"
"""Annotation of the EndpointSlice: the epoch of the master that it names."""
MANAGER: Final = "cometmq-operator"
"""Kubernetes' own controller leaves EndpointSlices of other managers alone."""
PORTS: Final = {"main": MAIN_PORT, "short": MAIN_PORT - 2}


class ServiceSeen(msgspec.Struct, frozen=True):
    """The Service as the API server has created it."""

    uid: str
    cluster_ip: str


class MasterPod(msgspec.Struct, frozen=True):
    """The pod of a master, and the epoch in which it is the master."""

    name: str
    uid: str
    address: str
    node: str
    epoch: int


def is_wanted(group: BrokerGroup) -> bool:
    """Return whether a group has such a Service.

    With external addresses, the Service is for clients outside the cluster, so it needs a host that
    they can reach.
    """
    external = group.spec.external
    return group.spec.master_service if external is None else external.master_host is not None


def address_of(group: BrokerGroup, service: ServiceSeen | None) -> str:
    """Return the address that the master registers; empty if it registers that of its pod."""
    if not is_wanted(group):
        return ""
    external = group.spec.external
    if external is not None:
        return f"{external.master_host}:{external.master_node_port or MAIN_PORT}"
    if service is None or not service.cluster_ip:
        return ""
    host = service.cluster_ip
    return f"[{host}]:{MAIN_PORT}" if ":" in host else f"{host}:{MAIN_PORT}"


def service_spec(group: BrokerGroup) -> Object:
    """Return the spec of the Service."""
    ports: list[Object] = [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
        for name, port in PORTS.items()
    ]
    external = group.spec.external
    if external is None:
        return {"type": "ClusterIP", "ports": ports}
    ports = ports[:1]
    if external.type is ExternalType.NODE_PORT and external.master_node_port:
        ports[0]["nodePort"] = external.master_node_port
    spec: Object = {"type": external.type.value, "ports": ports}
    if external.load_balancer_source_ranges:
        spec["loadBalancerSourceRanges"] = list(external.load_balancer_source_ranges)
    return spec


def service_seen(body: Object) -> ServiceSeen:
    """Return the parts of a Service that are needed here."""
    return ServiceSeen(body["metadata"].get("uid", ""), body.get("spec", {}).get("clusterIP", ""))


def slice_name(group: BrokerGroup, address: str) -> str:
    """Return the name of the EndpointSlice, whose family of addresses cannot be changed."""
    return f"{group.master_service}-ipv{ip_address(address).version}"


def endpoint_slice(group: BrokerGroup, service: ServiceSeen, pod: MasterPod) -> Object:
    """Return the EndpointSlice that leads to a master's pod; it is deleted with the Service."""
    endpoint: Object = {
        "addresses": [pod.address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {
            "kind": "Pod", "namespace": group.namespace, "name": pod.name, "uid": pod.uid,
        },
    }  # fmt: skip
    if pod.node:
        endpoint["nodeName"] = pod.node
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(group, pod.address),
            "namespace": group.namespace,
            "labels": {
                **group.labels,
                "kubernetes.io/service-name": group.master_service,
                "endpointslice.kubernetes.io/managed-by": MANAGER,
            },
            "annotations": {EPOCH: str(pod.epoch)},
            "ownerReferences": [
                {
                    "apiVersion": "v1", "kind": "Service", "name": group.master_service,
                    "uid": service.uid,
                }
            ],
        },
        "addressType": f"IPv{ip_address(pod.address).version}",
        "endpoints": [endpoint],
        "ports": [
            {"name": one["name"], "port": one["targetPort"], "protocol": "TCP"}
            for one in service_spec(group)["ports"]
        ],
    }  # fmt: skip


def epoch_of(body: Object) -> int:
    """Return the epoch of the master that an EndpointSlice names; 0 if it has none."""
    text = (body["metadata"].get("annotations") or {}).get(EPOCH, "")
    return int(text) if text.isdecimal() else 0
