# SPDX-License-Identifier: Apache-2.0
"""The Service whose address always leads to a group's master (pure).

The Service has no selector. Its EndpointSlice has one endpoint, the master's pod, and an annotation
with the epoch of that master, so that a late write cannot restore a former master.

A selector on a label with the role would select two pods while the old master's node is silent. It
would also be slower, because a controller of Kubernetes would have to notice the label first.
"""

from ipaddress import ip_address
from typing import Any, Final

import msgspec

from cometmq.operator.api_types.broker_group import GROUP
from cometmq.operator.broker_groups.group import MAIN_PORT, BrokerGroup

Object = dict[str, Any]

EPOCH: Final = f"{GROUP}/epoch"
"""Annotation of the EndpointSlice: the epoch of the master that it names."""
MANAGER: Final = "cometmq-operator"
"""Kubernetes' own controller leaves EndpointSlices of other managers alone."""


class PodAddress(msgspec.Struct, frozen=True):
    """Where a pod is reached."""

    name: str
    uid: str
    address: str
    node: str


class MasterPod(PodAddress, frozen=True):
    """The pod of a master, and the epoch in which it is the master."""

    epoch: int


def address_of(group: BrokerGroup, service: Object | None) -> str:
    """Return the address that the master registers; empty if it registers that of its pod."""
    if not group.has_master_service:
        return ""
    external = group.spec.external
    if external is not None:
        return f"{external.master_host}:{external.master_node_port or MAIN_PORT}"
    host = "" if service is None else service.get("spec", {}).get("clusterIP", "")
    if not host:
        return ""
    return f"[{host}]:{MAIN_PORT}" if ":" in host else f"{host}:{MAIN_PORT}"


def endpoint_slice(group: BrokerGroup, service_uid: str, pod: MasterPod) -> Object:
    """Return the EndpointSlice that leads to a master's pod; it is deleted with the Service."""
    version = ip_address(pod.address).version
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
            # The family of the addresses of an EndpointSlice cannot be changed.
            "name": f"{group.master_service}-ipv{version}",
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
                    "uid": service_uid,
                }
            ],
        },
        "addressType": f"IPv{version}",
        "endpoints": [endpoint],
        "ports": [
            {"name": name, "port": port, "protocol": "TCP"}
            for name, port in group.client_ports.items()
        ],
    }  # fmt: skip


def epoch_of(body: Object) -> int:
    """Return the epoch of the master that an EndpointSlice names; 0 if it has none."""
    text = (body["metadata"].get("annotations") or {}).get(EPOCH, "")
    return int(text) if text.isdecimal() else 0
