# SPDX-License-Identifier: Apache-2.0
"""One BrokerGroup as read from the API, and the names derived from it."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from cometmq.operator.api_types.broker_group import GROUP, Spec
from cometmq.operator.api_types.sections import Deletion
from cometmq.operator.managed import SKIP_DRAIN, Managed, metadata_of

MEMBERS_MAX: Final = 9
"""Maximum number of members, as in the schema. The settings of each broker have the addresses of
all possible members, so that scaling restarts no broker.
"""

MAIN_PORT: Final = 10911
REPLICATION_PORT: Final = 10912
CONTROL_PORT: Final = 10913
HTTP_PORT: Final = 10919

GROUP_LABEL: Final = f"{GROUP}/broker-group"
ROLE_LABEL: Final = f"{GROUP}/role"
SWITCHOVER: Final = f"{GROUP}/switchover-to"
FENCE: Final = f"{GROUP}/fence"
REBUILD: Final = f"{GROUP}/rebuild"
ROTATE_KEY: Final = f"{GROUP}/rotate-key"
ACCEPT_LOSS: Final = f"{GROUP}/accept-loss"
RESTART: Final = f"{GROUP}/restart"
"""Annotations that give orders."""
TLS_SECRET: Final = f"{GROUP}/tls-secret"
"""Annotation of a pod whose control port serves TLS; its value is the name of the Secret."""
CONTROL_NAME: Final = f"{GROUP}/control-name"
"""Annotation of such a pod whose certificate has this name instead of the pod's."""
KEY_MARK: Final = f"{GROUP}/group-key"
"""Annotation of a pod that has the group's key; its value is KEY_REQUIRED if the broker talks only
to members that prove it."""
KEY_REQUIRED: Final = "required"
KEY_OPTIONAL: Final = "optional"
VOLUME: Final = "store"
"""The volume of a pod's claim. Kubernetes names the claim after it and the pod."""


class BrokerGroup(Managed, frozen=True, kw_only=True):
    """The parts of a BrokerGroup that decisions depend on."""

    spec: Spec

    @property
    def broker_name(self) -> str:
        return self.spec.broker_name or self.name

    @property
    def peers(self) -> str:
        """The headless service that gives every pod a DNS name."""
        return f"{self.name}-peers"

    @property
    def master_service(self) -> str:
        return f"{self.name}-master"

    @property
    def key_secret(self) -> str:
        """The Secret with the key of the group; members prove to each other that they know it."""
        return f"{self.name}-group-key"

    @property
    def account(self) -> str:
        return f"{self.name}-broker"

    @property
    def labels(self) -> dict[str, str]:
        """The labels that select the pods; Kubernetes does not allow them to change."""
        return {
            "app.kubernetes.io/name": "cometmq-broker",
            "app.kubernetes.io/instance": self.name,
            GROUP_LABEL: self.name,
        }

    @property
    def selector(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.labels.items())

    def pod(self, ordinal: int) -> str:
        return f"{self.name}-{ordinal}"

    def host(self, ordinal: int) -> str:
        return f"{self.pod(ordinal)}.{self.peers}.{self.namespace}.svc"

    def ordinal(self, pod: str) -> int | None:
        """Return the ordinal in a pod's name; None if the pod does not belong to this group."""
        prefix, _, number = pod.rpartition("-")
        return int(number) if prefix == self.name and number.isdecimal() else None

    def is_claim(self, name: str) -> bool:
        """Return whether a PersistentVolumeClaim of this name is that of a pod of this group."""
        volume, _, pod = name.partition("-")
        return volume == VOLUME and self.ordinal(pod) is not None

    def owns(self, body: Mapping[str, Any]) -> bool:
        """Return whether Kubernetes deletes an object with the group."""
        owners = body["metadata"].get("ownerReferences") or ()
        return any(one["uid"] == self.uid for one in owners)

    def may_change(self, body: Mapping[str, Any]) -> bool:
        """Return whether an object belongs to this group, or to a deleted group of the same name.

        Otherwise a user with the right to create groups could take over other objects by choosing a
        name.
        """
        labels = body["metadata"].get("labels") or {}
        return self.owns(body) or labels.items() >= self.labels.items()

    @property
    def has_master_service(self) -> bool:
        """Whether a Service leads to the master.

        With external addresses, the Service is for clients outside the cluster, so it needs a host
        that they can reach.
        """
        external = self.spec.external
        return self.spec.master_service if external is None else external.master_host is not None

    @property
    def client_ports(self) -> dict[str, int]:
        """The ports of the master's Service; with external addresses only the main port."""
        main = {"main": MAIN_PORT}
        return main if self.spec.external is not None else {**main, "short": MAIN_PORT - 2}

    @property
    def skips_drain(self) -> bool:
        """Whether the user wants the group to be deleted although messages are left."""
        return self.spec.deletion is Deletion.NOW or self.annotations.get(SKIP_DRAIN) == "true"

    def leaving(self, replicas: int | None, pods: Collection[int]) -> frozenset[int]:
        """Return the ordinals that the elector has to keep out of the in-sync set.

        A pod is included until it is gone; otherwise a broker that is still stopping would rejoin
        the set.
        """
        if self.is_deleting:
            return frozenset()
        wanted = self.spec.replicas
        return frozenset(one for one in {*range(replicas or 0), *pods} if one >= wanted)


def group_of(body: Mapping[str, Any]) -> BrokerGroup:
    """Parse a BrokerGroup object; raise msgspec.ValidationError for an invalid spec."""
    return BrokerGroup(**metadata_of(body), spec=msgspec.convert(body["spec"], Spec))
